// The texts of errors of ranks, which all transports share. Plain values; any thread.
#pragma once

#include <cstddef>
#include <string>

namespace onnx_train {

// `what` names the exchange of `rank`.
std::string at_another_place(size_t other, int rank, const std::string& what);
std::string of_another_size(int from, size_t sent, const std::string& name, int rank, size_t wanted);
std::string is_gone(size_t rank, const std::string& host);
// What this rank takes from the last words of another one, which may forward those of a third; never "".
std::string heard(size_t rank, bool forwards, const std::string& reason);

}  // namespace onnx_train
