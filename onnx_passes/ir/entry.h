// What a model can be run for. Passes make the entry points of one table of names; a training model that another
// program wrote may have further ones, which run under their own names. Names stand in files, options and reports
// alone. Plain values; any thread.
#pragma once

#include <array>
#include <concepts>
#include <ostream>
#include <string>
#include <string_view>

namespace onnx_train {

enum class Entry {
  kPredict,     // the outputs of the inference graph
  kEvaluate,    // loss and metrics of a batch
  kStep,        // loss of a batch, its gradients, and the update
  kAccumulate,  // loss of a batch, whose gradients are added to sums
  kApply,       // the update from these sums
  kInitialize,  // the initial state, drawn anew
  kOther,       // of another program
};

// Those that have a name here, in the order in which they are shown.
inline constexpr std::array kEntries = {Entry::kPredict,    Entry::kEvaluate, Entry::kStep,
                                        Entry::kAccumulate, Entry::kApply,    Entry::kInitialize};

// The name in files, options and reports; "" for kOther.
const char* name_of(Entry entry);
// kOther for a name that is not in the table.
Entry entry_of(std::string_view name);

// Whether it is a step of a training, or a part of one: what it reads are the data to train on. Another program's entry
// point is taken for one.
bool trains(Entry entry);

// An entry point by its name, which for all but kOther follows from the kind.
class EntryName {
 public:
  EntryName(Entry entry) : entry_(entry), text_(name_of(entry)) {}
  template <std::convertible_to<std::string_view> Text>
  EntryName(const Text& text) : entry_(entry_of(text)), text_(std::string_view(text)) {}

  Entry kind() const { return entry_; }
  const std::string& text() const { return text_; }
  operator std::string_view() const { return text_; }

  friend bool operator==(const EntryName& a, const EntryName& b) { return a.text_ == b.text_; }
  friend bool operator==(const EntryName& a, Entry b) { return a.entry_ == b; }
  friend bool operator<(const EntryName& a, const EntryName& b) { return a.text_ < b.text_; }
  friend std::ostream& operator<<(std::ostream& out, const EntryName& entry) { return out << entry.text_; }

 private:
  Entry entry_;
  std::string text_;
};

}  // namespace onnx_train
