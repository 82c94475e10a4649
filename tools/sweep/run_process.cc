#include "tools/sweep/run_process.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "platform/lock.h"
#include "tools/interrupt.h"

namespace onnx_train {
RunLog::RunLog(const std::string& folder) : path_(folder + "/log.txt") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_as(ErrorCode::kCannotWrite, "cannot make the folder ", folder, ": ", error.message());
  file_ = platform::open_log(path_);
  if (!file_.is_open()) fail_as(ErrorCode::kFile, "cannot write ", path_, ": ", std::strerror(errno));
  locked_ = platform::lock_file(file_);
}

std::string RunLog::last_line() const {
  constexpr uint64_t kEnd = 4096;
  const std::optional<platform::FileStatus> status = file_.status();
  if (!status) return "";
  std::string text(std::min(status->size, kEnd), '\0');
  const std::ptrdiff_t got = file_.read_some(status->size - text.size(), text.size(), text.data());
  text.resize(static_cast<size_t>(std::max<std::ptrdiff_t>(got, 0)));
  const size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  text.resize(end + 1);
  return text.substr(text.rfind('\n') + 1);
}

platform::ProcessEnd run_process(const std::vector<std::string>& arguments, const RunLog& log,
                                 const std::function<void()>& look) {
  const std::atomic<bool>& interrupted = catch_interrupts();
  std::vector<std::string> words = {"onnx-train"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const platform::Child child =
      platform::start_apart(words, log.descriptor(), "onnx-train: this program cannot be started again\n");
  if (child < 0) fail("cannot start a process: ", std::strerror(errno));
  platform::ProcessEnd end;
  for (bool passed_on = false;;) {
    const int has_ended = platform::ask_for_end(child, &end);
    if (has_ended > 0) return end;
    if (has_ended < 0) fail("cannot wait for a run: ", std::strerror(errno));
    if (interrupted && !passed_on) {
      platform::interrupt(child);
      passed_on = true;
    }
    look();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace onnx_train
