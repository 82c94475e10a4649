#include "runtime/plan/upload.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

template <typename Copy>
void copy_blocks(const Tensor& contents, void* to, const Copy& copy) {
  auto* next = static_cast<char*>(to);
  for_each_block(contents, [&](const void* data, size_t bytes) {
    copy(next, data, bytes);
    next += bytes;
  });
}

void align_graph(Graph* graph) {
  for (Value* value : graph->initializers()) {
    const Tensor* beside = contents_beside(value->shared_initializer());
    if (!beside || is_aligned(*beside)) continue;
    Tensor aligned(beside->dtype(), beside->shape());
    copy_blocks(*beside, aligned.data(), std::memcpy);
    graph->set_initializer(value, aligned);
  }
}

}  // namespace

void upload(const Tensor& contents, Stream* stream, void* to) {
  copy_blocks(contents, to, [&](void* t, const void* f, size_t n) { stream->copy_from_host(t, f, n); });
}

bool is_aligned(const Tensor& contents) { return reinterpret_cast<uintptr_t>(contents.data()) % kAlignment == 0; }

void align_contents(Model* model) {
  align_graph(model->graph.get());
  for (EntryPoint& entry : model->entry_points) align_graph(entry.algorithm.get());
}

}  // namespace onnx_train
