// The calendar. Any thread.
#pragma once

#include <ctime>

namespace onnx_train::platform {

// The date and time of day where the machine is.
std::tm local_time(std::time_t time);

}  // namespace onnx_train::platform
