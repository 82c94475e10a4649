// CIFAR-10's binary version: records of one label byte and 3 x 32 x 32 bytes.
// https://www.cs.toronto.edu/~kriz/cifar.html
#include <cstring>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"

namespace onnx_train {
namespace {

constexpr size_t kImage = 3 * 32 * 32, kRecord = 1 + kImage;
constexpr int kCifarClasses = 10;

// Every program has its own .bin format.
void check_records(const std::string& path, const MappedFile& file) {
  std::string found;
  if (file.size() == 0 || file.size() % kRecord != 0) {
    found = concat(file.size(), " bytes are not a whole number of records of ", kRecord, " bytes");
  }
  for (size_t at = 0; at < file.size() && found.empty(); at += kRecord) {
    if (file.data()[at] >= kCifarClasses)
      found = concat("record ", at / kRecord, " has the label ", int{file.data()[at]});
  }
  if (found.empty()) return;
  fail_as(ErrorCode::kFile, path, " is no CIFAR-10 file: ", found,
          "; tokens are read for models that take int64[batch, tokens] (", kFormats, ")");
}

}  // namespace

DataArrays open_cifar10(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs) {
  std::vector<std::shared_ptr<const MappedFile>> files;
  size_t count = 0;
  for (const std::string& path : paths) {
    files.push_back(MappedFile::open(path));
    check_records(path, *files.back());
    count += files.back()->size() / kRecord;
  }
  Tensor images(DType::kUint8, {static_cast<int64_t>(count), 3, 32, 32});
  Tensor labels(DType::kUint8, {static_cast<int64_t>(count)});
  uint8_t* image = images.data<uint8_t>();
  uint8_t* label = labels.data<uint8_t>();
  for (const auto& file : files) {
    for (size_t at = 0; at < file->size(); at += kRecord, image += kImage) {
      *label++ = file->data()[at];
      std::memcpy(image, file->data() + at + 1, kImage);
    }
  }
  TensorMap arrays;
  if (const std::string name = first_input(inputs); !name.empty()) arrays[name] = images;
  if (const std::string name = first_label(inputs); !name.empty()) arrays[name] = labels;
  return arrays_of(arrays);
}

}  // namespace onnx_train
