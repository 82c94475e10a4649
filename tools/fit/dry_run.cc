#include "tools/fit/dry_run.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "platform/file.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

// Interrupts the training after a few steps. The first one makes plans and does not count, if there is another.
class TimedSteps : public TrainerEvents {
 public:
  void on_step(const StepReport& report) override {
    constexpr int64_t kEnough = 4;
    if (steps++ == 0) {
      loss = report.loss;
      first = report.milliseconds;
    } else {
      fastest = std::min(fastest, report.milliseconds);
    }
    enough = enough || steps >= kEnough;
  }
  double milliseconds() const { return steps > 1 ? fastest : first; }

  int64_t steps = 0;
  double loss = 0, first = 0, fastest = std::numeric_limits<double>::infinity();
  std::atomic<bool> enough{false};
};

}  // namespace

std::string rehearse(Trainer* trainer, bool json) {
  const int64_t before = trainer->position().step;
  TimedSteps timed;
  trainer->run(&timed, timed.enough);
  const int64_t left = std::max<int64_t>(trainer->total_steps() - before, 0);
  const double seconds = timed.milliseconds() * static_cast<double>(left) / 1e3;
  if (json) {
    nlohmann::ordered_json object = {{"dry_run", true}, {"steps", left}, {"ms", timed.milliseconds()}};
    if (left > 0) object["seconds"] = seconds;
    object["loss"] = timed.loss;
    return object.dump() + "\n";
  }
  if (timed.steps == 0) return "dry run: no step is left to do. Nothing was written.\n";
  std::string text = concat("dry run: the first loss is ", format_number(timed.loss), ", a step takes about ",
                            format_number(timed.milliseconds()), " ms");
  if (left > 0) text += concat(", ", left, " steps ", format_duration(seconds), " without evaluations");
  return text + ". Nothing was written.\n";
}

void check_writable(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!fs::exists(path, error) && path.has_parent_path() && path != path.parent_path()) path = path.parent_path();
  if (!fs::is_directory(path, error)) fail_as(ErrorCode::kFile, path.string(), " is no folder; take another --out");
  if (!platform::may_write_into(path.string())) {
    fail_as(ErrorCode::kFile, "cannot write in ", path.string(), ": ", std::strerror(errno), "; take another --out");
  }
}

}  // namespace onnx_train
