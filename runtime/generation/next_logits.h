// The logits that follow texts while these are written: with a cache of keys and values (cached_reader.h) where the
// model can have one, else by reading all tokens anew. The caller owns the session, which must outlive the object and
// which one thread uses at a time. Throws Error (kUnsupported) for a model of another form, or whose logits depend on
// what comes after them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/generation/cached_reader.h"
#include "runtime/generation/logits.h"
#include "runtime/generation/text_windows.h"
#include "runtime/session/session.h"

namespace onnx_train {

inline constexpr const char* kNoCache = "--no-cache";

// What was read of prompts, and what was written after them, with the seconds that it took; with a cache without those
// to plan. Of a prompt that begins as the one before only the rest is read.
struct GenerationReport {
  std::string uncached;  // why all tokens were read anew; "" with a cache
  int64_t context = 0;   // where a text became longer, and was read anew from then on; else 0
  int64_t runs = 0;      // of the model for tokens that were drawn
  int64_t read = 0, written = 0;
  double reading = 0, writing = 0;
};

class NextLogits {
 public:
  // Of as many texts at a time. `context` and `usual`: as TextWindows has them.
  NextLogits(Session* session, int64_t texts, int64_t context, int64_t usual, bool no_cache);

  // The next texts begin with these prompts.
  void begin(const Texts& prompts);
  // The logits after each text, in the order of the prompts. Nothing of use for texts that are complete.
  Logits operator()(const Texts& texts, const std::vector<bool>& is_complete);

  int64_t context() const { return windows_.context(); }
  const GenerationReport& report() const { return report_; }

 private:
  // Texts that are read side by side.
  struct Group {
    std::vector<size_t> texts;
    std::vector<int64_t> filled;  // at the beginning of each, until all are as long as the longest
    int64_t length = 0;           // of the texts now, and of those that are complete if they went on
    std::unique_ptr<CachedReader> reader = nullptr;
    bool is_prompt = true;
  };

  Logits with_cache(const Texts& texts, const std::vector<bool>& is_complete);
  Logits without_cache(const Texts& texts, const std::vector<bool>& is_complete);
  void form_groups(const Texts& prompts);
  Texts side_by_side(const Texts& texts, const Group& group) const;
  std::unique_ptr<CachedReader> reader_of(const Group& group);
  bool reads_filled_texts(const Texts& texts, const Group& group, const Logits& logits);
  void check(const Group& group, const Texts& read);
  void give_up(const std::string& why);
  void count(bool is_prompt, int64_t tokens, double seconds);

  std::unique_ptr<Session> plain_;
  Session& session_;
  TextWindows windows_;
  GenerationReport report_;
  std::unique_ptr<CachedModel> cached_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<CachedReader>> spare_;  // of the texts before
  bool fills_;                                        // whether texts of different lengths are read side by side
  bool has_tried_filled_ = false;
  bool is_checked_ = false;
  bool is_prompt_ = true;  // what is read next without a cache
};

}  // namespace onnx_train
