#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace onnx_train {

// The processor's milliseconds since `start`: of this process, so that other programs beside it do not count.
inline double milliseconds_since(std::clock_t start) {
  return 1000.0 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// As many of the processor's milliseconds as a second was on the machine where bounds of time were set. The measure is
// fixed work of the kind that passes do: small objects are made, found by name and destroyed. A slow or busy machine
// takes longer for both.
inline double second_of_this_machine() {
  constexpr int kObjects = 50'000;
  constexpr double kMillisecondsThere = 45;
  const auto name_of = [](int i) { return "an object with a long name, " + std::to_string(i % kObjects); };
  double least = 1e9;
  for (int time = 0; time < 3; ++time) {
    const std::clock_t start = std::clock();
    std::map<std::string, std::unique_ptr<std::vector<int>>> objects;
    for (int i = 0; i < kObjects; ++i) objects[name_of(7919 * i)] = std::make_unique<std::vector<int>>(4, i);
    for (int i = 0; i < kObjects; ++i) objects.at(name_of(i))->front() += i;
    objects.clear();
    least = std::min(least, milliseconds_since(start));
  }
  return 1000 * least / kMillisecondsThere;
}

// How much longer two threads take side by side than one, which only count: more than 1 where other programs use the
// cores.
inline double slowness_of_two_threads() {
  const auto seconds = [](int count) {
    std::vector<std::thread> threads;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([] {
        for (volatile int j = 0; j < 80'000'000;) j = j + 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double one = seconds(1);
  return std::max(1.0, seconds(2) / one);
}

}  // namespace onnx_train
