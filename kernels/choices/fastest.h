// Choices between forms of one computation, made by timing them on the device: what is faster for one shape, or on one
// processor, is slower for the next. Any thread may call.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

class Device;

struct Form {
  std::string name;  // unique among the forms of a node, the same in each run, and printed by `show --plan`
  // Prepares the node in this form, for which a library may compile a kernel. Returns nothing if the library refuses
  // the form, which it never does with the first one.
  std::function<std::optional<Prepared>()> prepare;
  // Prepares what is timed in its place, if it is not null: a part of the node, where all of it takes long. The samples
  // of all forms write the same elements.
  std::function<std::optional<Prepared>()> sample = nullptr;
};

// A device on which forms are timed.
struct Track {
  Device* device;
  std::string backend;   // "cuda": the folder of its choices in the cache (cache.h)
  std::string hardware;  // the processor, and its driver: a choice holds for these
  double most_seconds;   // that a process spends on choices if ONNX_TRAIN_TIMED_CHOICES is not set
  double milliseconds;   // that each form of a node has for repetitions
  // Whether nodes are timed only for a training that keeps its choices (Choices), and where the cache keeps them for
  // the next one. Else a run without them would have other bits than the next.
  bool must_keep;
  // Enqueues what fills n elements with numbers in [-1, 1), the same for the same seed. Elements that are no floats are
  // not written.
  void (*fill_with_noise)(const Launch& launch, DType type, int64_t n, uint32_t seed, void* to);
  void (*set_bytes)(const Launch& launch, void* to, int value, size_t bytes);
  // Returns the largest difference of n elements relative to the largest of y: 0 for types that are no floats, NaN
  // where x is one and y is not. Waits for the launch's stream.
  double (*relative_difference)(const Launch& launch, DType type, int64_t n, const void* x, const void* y);
  // Zeroed memory for `bytes`; the device's if these are null. What is never read may have no memory.
  void* (*allocate)(size_t bytes) = nullptr;
  void (*free)(void* data, size_t bytes) = nullptr;
};

// What a node computes, for the cache and the checkpoint: nodes of one text share a choice.
struct Computation {
  std::string library;  // what the forms call, with its version
  std::string text;     // computation_of(spec), or that of the samples
  // Samples read and write only so many bytes of each operand, from its start.
  size_t bytes = SIZE_MAX;
};

// False with ONNX_TRAIN_TIMED_CHOICES=off: fastest() takes the first form, and others need not be found.
bool has_choices();

// Returns the form that takes the least time for the node on the track's device, and says its name in Prepared::form.
// All forms read the node's inputs and write its outputs, whatever the inputs hold. The first form is the rule: it
// stays unless another one is faster by more than kGain, and wherever nothing is timed. A form takes no part if it
// needs more than half of the free memory, or a workspace larger than the rule's, the node's operands and 32 MiB,
// or other results than the rule's.
// ONNX_TRAIN_TIMED_CHOICES is
//   - the seconds that this process spends on choices, the track's if it is not set: where they are over, a node has
//     the best of the forms that were timed, and says so;
//   - `off`: the rule everywhere;
//   - `form=2`: form 2 of each node, counted from 0, or its last one, so that tests reach all of them.
//
// The answer is that of the node's Choices, if they have one. Else it is kept for this process and in the cache folder
// (cache.h), by the computation, the hardware and the forms: equal nodes have one form, and later runs have the same
// bits; a larger number of seconds makes again what a smaller one cut short. Throws Error when the device fails.
//
// Forms are timed on random inputs in [-1, 1), integers on zeros. set_inputs(launch) enqueues the writes of those
// inputs that need other contents.
using SetInputs = std::function<void(const Launch&)>;
Prepared fastest(const Track& track, const NodeSpec& spec, const Computation& computation,
                 const std::vector<Form>& forms, const SetInputs& set_inputs = nullptr);

inline constexpr double kGain = 0.02;

}  // namespace onnx_train
