// What a sweep varies: values of options of `fit`, from texts such as "lr=1e-4,1e-3" and "lr=log_uniform(1e-5, 1e-2)".
// Plain values and pure functions; any thread. Errors are UsageError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/support/options.h"

namespace onnx_train {

// The range of numbers that are drawn at random, `low` and `high` included; of whole numbers for an option that takes
// those.
struct Distribution {
  double low = 0, high = 0;
  bool logarithmic = false;  // uniform in the logarithm
  bool whole = false;
};

struct Variation {
  std::string key;                  // of the option
  std::vector<std::string> values;  // empty: the distribution
  std::optional<Distribution> distribution;
};

// "NAME=VALUE,VALUE,...", "NAME=uniform(LOW, HIGH)" or "NAME=log_uniform(LOW, HIGH)". Names are those that a file of
// options takes; commas in brackets or quotes belong to a value.
Variation parse_variation(const std::string& text, const std::vector<CommandOption>& options);

// The varied options of one run: key and value, in the order of the variations.
using VariedOptions = std::vector<std::pair<std::string, std::string>>;

// Every combination; the last variation changes fastest. Throws if a value must be drawn.
std::vector<VariedOptions> grid(const std::vector<Variation>& variations);

// `count` different combinations, drawn one after the other: those of a larger count begin with those of a smaller one.
// Fewer if there are no more.
std::vector<VariedOptions> draws(const std::vector<Variation>& variations, int64_t count, uint64_t seed);

// The name of the run's folder: "lr=0.001,batch-size=32". Characters that mean something to shells or file systems
// become '-', and the '.' of ".onnx", since a folder is no file; a name that was changed or is too long ends in a hash
// of what it stands for.
std::string run_name(const VariedOptions& varied);

}  // namespace onnx_train
