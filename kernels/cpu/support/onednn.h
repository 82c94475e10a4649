// Which instruction sets oneDNN may use, and which oneDNN there is. Any thread may call.
#pragma once

#include <string>

#include "kernels/cpu/support/cpu_features.h"

namespace onnx_train::cpu {

// Whether products and convolutions may be oneDNN's: this build has it, and isa() is not kScalar.
bool has_onednn();

// "oneDNN 3.2.0", "no oneDNN".
std::string onednn_version();

// Returns the highest level up to `most` at which this build's kernels can run: without oneDNN there are no products of
// bfloat16. oneDNN requests the AMX registers from the system here.
Isa highest_of_onednn(Isa most);

// Must precede oneDNN's first use, which fixes its level; returns false if it does not.
bool cap_onednn(Isa level);

}  // namespace onnx_train::cpu
