#include "platform/clock.h"

namespace onnx_train::platform {

std::tm local_time(std::time_t time) {
  std::tm date{};
  localtime_r(&time, &date);
  return date;
}

}  // namespace onnx_train::platform
