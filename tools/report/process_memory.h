// What this process has resident, in bytes, as the kernel counts it.
#pragma once

namespace onnx_train {

double resident_memory();
double peak_memory();  // the most it has ever been

}  // namespace onnx_train
