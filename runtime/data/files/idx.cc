// IDX, the format of MNIST: two zero bytes, a type, a rank, big-endian sizes, big-endian data.
// http://yann.lecun.com/exdb/mnist
#include <algorithm>
#include <cstring>
#include <memory>

#include <zlib.h>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"

namespace onnx_train {
namespace {

struct Bytes {
  const unsigned char* data;
  size_t size;
  std::shared_ptr<const void> owner;
};

Bytes inflate_file(const std::string& path) {
  std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) fail_as(ErrorCode::kFile, "cannot read ", path);
  auto contents = std::make_shared<std::string>();
  std::string block(1 << 20, '\0');
  int count = 0;
  while ((count = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()))) > 0) {
    contents->append(block.data(), static_cast<size_t>(count));
  }
  // Closing a file that ends too early is an error, though all reads of it are good.
  const bool closed = gzclose(file.release()) == Z_OK;
  if (count != 0 || !closed) fail_as(ErrorCode::kDataDamaged, path, " is damaged: it does not inflate");
  return {reinterpret_cast<const unsigned char*>(contents->data()), contents->size(), contents};
}

Bytes read_bytes(const std::string& path) {
  if (path.ends_with(".gz")) return inflate_file(path);
  const auto file = MappedFile::open(path);
  return {file->data(), file->size(), file};
}

DType idx_type(unsigned char code, const std::string& path) {
  switch (code) {
    case 0x08: return DType::kUint8;
    case 0x09: return DType::kInt8;
    case 0x0b: return DType::kInt16;
    case 0x0c: return DType::kInt32;
    case 0x0d: return DType::kFloat;
    case 0x0e: return DType::kDouble;
    default: fail_as(ErrorCode::kFile, path, " is no IDX file: unknown type ", int{code});
  }
}

Tensor read_idx(const std::string& path) {
  const Bytes bytes = read_bytes(path);
  if (bytes.size < 4 || bytes.data[0] != 0 || bytes.data[1] != 0) fail_as(ErrorCode::kFile, path, " is no IDX file");
  const DType dtype = idx_type(bytes.data[2], path);
  const size_t rank = bytes.data[3], start = 4 + 4 * rank;
  if (bytes.size < start) fail_as(ErrorCode::kDataDamaged, path, " is cut off");
  Shape shape;
  for (size_t i = 0; i < rank; ++i) {
    const unsigned char* p = bytes.data + 4 + 4 * i;
    shape.push_back(int64_t{p[0]} << 24 | p[1] << 16 | p[2] << 8 | p[3]);
  }
  const size_t element = size_of(dtype), available = bytes.size - start;
  if (static_cast<size_t>(num_elements(shape)) > available / element) {
    fail_as(ErrorCode::kDataDamaged, path, " is cut off: ", name(dtype), to_string(shape), " needs more than the ",
            available, " bytes that are there");
  }
  const unsigned char* data = bytes.data + start;
  if (element == 1) return Tensor(dtype, shape, data, bytes.owner);
  Tensor tensor(dtype, shape);
  auto* out = static_cast<unsigned char*>(tensor.data());
  for (size_t i = 0; i < tensor.bytes(); i += element) std::reverse_copy(data + i, data + i + element, out + i);
  return tensor;
}

}  // namespace

DataArrays open_idx(const std::string& images, const std::string& labels, const std::vector<InputSpec>& inputs) {
  TensorMap arrays;
  if (const std::string name = first_input(inputs); !name.empty()) arrays[name] = read_idx(images);
  if (const std::string name = first_label(inputs); !name.empty() && !labels.empty()) arrays[name] = read_idx(labels);
  return arrays_of(arrays);
}

}  // namespace onnx_train
