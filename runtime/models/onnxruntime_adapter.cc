#include "runtime/models/onnxruntime_adapter.h"

#include <vector>

#include "embedded/onnxruntime_adapter_generated.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr int32_t kFormatVersion = 1;
constexpr size_t kMostAdapterBytes = size_t{1} << 30;  // of tensors; a buffer that grows is copied, and ends at 2 GiB

}  // namespace

void write_onnxruntime_adapter(const std::string& path, const TensorMap& values) {
  size_t bytes = 0;
  for (const auto& [name, value] : values) bytes += value.bytes();
  if (bytes > kMostAdapterBytes)
    fail_as(ErrorCode::kCannotWrite, path, ": the adapter has ", bytes, " bytes, and ONNX Runtime's format holds ",
            kMostAdapterBytes, ": take a smaller rank, or write it for PEFT (-o DIR/)");
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<adapter_format::Parameter>> parameters;
  for (const auto& [name, value] : values) {
    builder.ForceVectorAlignment(value.bytes(), sizeof(uint8_t), 8);
    const auto data = builder.CreateVector(value.data<uint8_t>(), value.bytes());
    const auto dims = builder.CreateVector(value.shape());
    const auto text = builder.CreateString(name);
    parameters.push_back(
        adapter_format::CreateParameter(builder, text, dims, static_cast<int32_t>(value.dtype()), data));
  }
  const auto all = builder.CreateVector(parameters);
  adapter_format::FinishAdapterBuffer(
      builder, adapter_format::CreateAdapter(builder, kFormatVersion, /*adapter_version=*/1, /*model_version=*/1, all));
  write_file(path, std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()));
}

}  // namespace onnx_train
