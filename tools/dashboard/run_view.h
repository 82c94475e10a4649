// The dashboard of a run on the terminal, drawn from the files in its folder: the process that trains and one that
// watches show the same.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "tools/run_report/run_files.h"

namespace onnx_train {

struct ViewSettings {
  std::string folder;
  std::string metric = "loss";
  std::string keys;                                          // what keys do
  double every = 0.25;                                       // seconds from one frame to the next, at least
  std::function<std::string(const RunFiles&)> state;         // "running"
  std::function<double()> peak_memory = [] { return 0.0; };  // of the process that trains, in bytes; 0: not known
  std::function<void()> on_quit;                             // 'q' has been pressed
};

// Shows the run for as long as `goes_on` says so. A frame that takes long to make is followed by a longer pause, so
// that drawing takes less than a fiftieth of a core. One thread, which is the only one to read the terminal. Throws
// what read_run does.
void show_run(const ViewSettings& settings, const std::function<bool(const RunFiles&)>& goes_on);

// The same in a thread of its own, from when this is made until it is destroyed. What cannot be shown ends the view,
// and not the run.
class RunView {
 public:
  explicit RunView(ViewSettings settings);
  ~RunView();
  RunView(const RunView&) = delete;
  RunView& operator=(const RunView&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace onnx_train
