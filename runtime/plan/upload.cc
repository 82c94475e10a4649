#include "runtime/plan/upload.h"

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/io/shared_copy.h"
#include "onnx_passes/ir/initializer.h"

namespace onnx_train {
namespace {

void align_graph(Graph* graph) {
  for (Value* value : graph->initializers()) {
    const Tensor* beside = contents_beside(value->shared_initializer());
    if (!beside || is_aligned(beside->stored())) continue;
    const Tensor aligned = shared_copy(beside->stored(), beside->stored().dtype());
    graph->set_initializer(value, beside->narrow()   ? Tensor::widened(aligned)
                                  : beside->packed() ? Tensor::unpacked(beside->dtype(), beside->shape(), aligned)
                                                     : aligned);
  }
}

}  // namespace

void upload(const Tensor& contents, Stream* stream, void* to) {
  auto* next = static_cast<char*>(to);
  for_each_block(contents, [&](const void* data, size_t bytes) {
    stream->copy_from_host(next, data, bytes);
    if (contents.is_stored_in_fewer_bits()) stream->synchronize();  // the block is gone then
    next += bytes;
  });
}

void align_contents(Model* model) {
  align_graph(model->graph.get());
  for (EntryPoint& entry : model->entry_points) align_graph(entry.algorithm.get());
}

}  // namespace onnx_train
