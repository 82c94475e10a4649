// The forms that the nodes of a training have (fastest.h). Forms round differently, so a checkpoint keeps them: a run
// that resumes gives the same bits on each machine that has these forms, whatever is faster there. One object belongs
// to a session; any thread may call it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace onnx_train {

class Choices {
 public:
  // The metadata under which a model keeps them, one a line: a hash of what is computed, a space, the form's name.
  static constexpr const char* kMetadata = "onnx_train.choices";

  // What happens to a node that has no form yet, here or in the cache.
  enum class New {
    kTimed,   // it is timed
    kByRule,  // it has the rule's form from now on
    kDrafted  // it has the rule's form, which is not kept: for a plan that is not run
  };

  // The lines of `text` hold. Lines that are none are left out.
  explicit Choices(const std::string& text = "") { add(text); }

  std::optional<std::string> find(const std::string& computation) const;
  void keep(const std::string& computation, const std::string& form);
  // Those of `text` for which this has none.
  void add(const std::string& text);
  // In the order of hashes.
  std::string text() const;

  void set_new(New what) { new_ = what; }
  New what_is_new() const { return new_; }

  // How many nodes were timed for this session, for how many of these time was over, and how long it took.
  struct Timed {
    int nodes = 0, cut_short = 0;
    double seconds = 0;
  };
  void add_timed(double seconds, bool is_final);
  Timed timed() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> forms_;  // by hash
  Timed timed_;
  std::atomic<New> new_ = New::kTimed;
};

}  // namespace onnx_train
