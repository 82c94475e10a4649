// A run of a sweep: `fit` in a process of its own, whose output goes to RUN/log.txt. What ends that process, be it the
// system for want of memory, ends one run. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "platform/file.h"
#include "platform/process.h"

namespace onnx_train {

// RUN/log.txt, locked for the process that holds it open and for its child: two sweeps of one folder share its runs.
class RunLog {
 public:
  // Makes the folder. Throws Error.
  explicit RunLog(const std::string& folder);

  // False if another process has the run.
  bool is_locked() const { return locked_; }
  int descriptor() const { return file_.descriptor(); }
  // The last line that is not empty; "" if there is none.
  std::string last_line() const;

 private:
  std::string path_;
  platform::File file_;
  bool locked_ = false;
};

// Runs this program with `arguments` and returns how it ended. The first interrupt of this process stops the run after
// its step, as Ctrl-C does; when this process ends, the run stops, too. `look` is called from time to time meanwhile.
platform::ProcessEnd run_process(const std::vector<std::string>& arguments, const RunLog& log,
                                 const std::function<void()>& look);

}  // namespace onnx_train
