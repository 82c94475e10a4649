#include "tools/dashboard/run_view.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "tools/dashboard/dashboard.h"
#include "tools/report/output.h"
#include "tools/report/screen.h"

namespace onnx_train {

void show_run(const ViewSettings& settings, const std::function<bool(const RunFiles&)>& goes_on) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kKeys = std::chrono::milliseconds(50);
  constexpr int kPause = 50;  // times the time of a frame
  const char* const no_colour = std::getenv("NO_COLOR");
  DashboardSettings shown;
  shown.metric = settings.metric;
  shown.keys = settings.keys;
  shown.colour = !(no_colour && *no_colour);
  RunFiles run = read_run(settings.folder);
  Screen screen;
  while (goes_on(run)) {
    const auto start = Clock::now();
    const Screen::Size size = screen.size();
    shown.state = settings.state(run);
    shown.messages = held_output(size.rows);
    shown.peak_memory = settings.peak_memory();
    screen.draw(dashboard(run, shown, size.columns, size.rows));
    const auto pause =
        std::max(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings.every)),
                 kPause * (Clock::now() - start));
    while (Clock::now() - start < pause && goes_on(run) && screen.size() == size) {
      if (screen.key(kKeys) == 'q') {
        settings.on_quit();
        break;
      }
    }
    refresh(settings.folder, &run);
  }
}

RunView::RunView(ViewSettings settings)
    : thread_([this, settings = std::move(settings)] {
        try {
          show_run(settings, [this](const RunFiles&) { return !over_; });
        } catch (const std::exception& e) {
          print_error(std::string("onnx-train: note: the view of the run ended: ") + e.what());
        }
      }) {}

RunView::~RunView() {
  over_ = true;
  thread_.join();
}

}  // namespace onnx_train
