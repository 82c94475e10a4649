// What is computed once for all processes of a user: images of kernels, choices between kernels. It is kept in a
// folder: $ONNX_TRAIN_CACHE, else $XDG_CACHE_HOME/onnx-train, else ~/.cache/onnx-train. Any thread may call.
#pragma once

#include <optional>
#include <string>

namespace onnx_train::cuda {

// Returns the content that was kept under this kind and key. Nothing if there is none, or if its file is damaged. The
// key says everything that the content depends on.
std::optional<std::string> read_cached(const std::string& kind, const std::string& key);

// Keeps the content. A failure to do so costs only time later, so it is not reported.
void write_cached(const std::string& kind, const std::string& key, const std::string& content);

}  // namespace onnx_train::cuda
