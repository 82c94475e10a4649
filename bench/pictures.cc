// Pictures for each second, decoded, preprocessed and augmented by the threads of GatherAhead:
//     pictures_bench FOLDER THREADS SIZE PREPROCESS AUGMENT EPOCHS STEP
// prints a line for each epoch: pictures a second, and the steps but the first that waited for a batch for more than a
// tenth of a step of STEP milliseconds, which sleeps, as a step on another device does. From the second epoch on, what
// all epochs have in common is in memory. bench/pictures.py compares it with Pillow.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "kernels/host.h"
#include "runtime/data/loading/batch_source.h"
#include "runtime/data/loading/source.h"

int main(int argc, char** argv) {
  using namespace onnx_train;
  if (argc != 8) return std::fprintf(stderr, "see bench/pictures.cc for the arguments\n"), 2;
  try {
    set_num_threads(std::atoi(argv[2]));
    const int64_t size = std::atoi(argv[3]);
    InputSpec input;
    input.name = "x";
    input.type = {DType::kFloat, Dims{"N", 3, size, size}};
    const std::vector<InputSpec> inputs(1, input);
    DataNotes notes;
    DataArrays files;
    files.pictures = find_pictures(argv[1], /*for_training=*/true);
    const Dataset data = make_dataset(std::move(files), inputs, Preprocess::of_steps(argv[4], inputs), Model(), argv[5],
                                      /*trains=*/true, &notes);
    using Milliseconds = std::chrono::duration<double, std::milli>;
    const Milliseconds step(std::atof(argv[7]));
    for (int64_t epoch = 0; epoch < std::atoi(argv[6]); ++epoch) {
      const auto start = std::chrono::steady_clock::now();
      const std::vector<int64_t> order = sample_order(data.num_samples(), 0, epoch, true);
      GatherAhead batches(&data);
      const auto rows = [&, at = int64_t{0}]() mutable {
        const int64_t end = std::min(at + kUsualBatch, data.num_samples());
        const std::vector<int64_t> next(order.begin() + at, order.begin() + end);
        at = end;
        return next;
      };
      batches.start(rows, AugmentKey{0, epoch});
      TensorMap batch;
      int64_t steps = 0, waited = 0;
      for (auto ready = start; batches.next(&batch) > 0; ready = std::chrono::steady_clock::now()) {
        const Milliseconds wait = std::chrono::steady_clock::now() - ready;
        if (steps++ > 0 && wait > step / 10) ++waited;
        if (step.count() > 0) std::this_thread::sleep_for(step);
      }
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      std::printf("%.1f %lld\n", static_cast<double>(data.num_samples()) / seconds.count(),
                  static_cast<long long>(waited));
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
