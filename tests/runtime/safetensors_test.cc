#include "runtime/data/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "onnx_passes/ir/error.h"
#include "runtime/data/loading/source.h"
#include "tests/support/error_of.h"

namespace onnx_train::safetensors_test {
namespace {

using testing::HasSubstr;

std::string with_header(const std::string& name, const std::string& header, size_t bytes) {
  const std::string path = testing::TempDir() + name;
  const uint64_t length = header.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  std::ofstream(path, std::ios::binary) << head << header << std::string(bytes, '\1');
  return path;
}

TEST(Safetensors, ReadsWhatItWrites) {
  const std::string path = testing::TempDir() + "all.safetensors";
  TensorMap tensors;
  for (const DType dtype :
       {DType::kFloat, DType::kDouble, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt16, DType::kInt32,
        DType::kInt64, DType::kUint8, DType::kUint16, DType::kUint32, DType::kUint64}) {
    tensors[name(dtype)] = Tensor::full(dtype, {2, 3}, 5);
  }
  tensors["flags"] = Tensor::of<bool>({3}, {true, false, true});
  tensors["number"] = Tensor::scalar(2.5f);
  tensors["of size zero"] = Tensor(DType::kFloat, {0, 4});
  write_safetensors(path, tensors, {{"format", "pt"}});
  std::map<std::string, std::string> metadata;
  const TensorMap read = read_safetensors(path, &metadata);
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [key, tensor] : tensors) {
    const Tensor& same = read.at(key);
    EXPECT_EQ(same.dtype(), tensor.dtype()) << key;
    EXPECT_EQ(same.shape(), tensor.shape()) << key;
    EXPECT_EQ(std::memcmp(same.data(), tensor.data(), tensor.bytes()), 0) << key;
  }
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(read_arrays(path).size(), tensors.size());
}

TEST(Safetensors, AnOddHeaderDoesNotMisalign) {
  const std::string path =
      with_header("odd.safetensors", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )", 8);
  const Tensor a = read_safetensors(path).at("a");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 4, 0u);
  EXPECT_GT(a.at(1), 0);
}

TEST(Safetensors, NothingInAFileIsTrusted) {
  const std::string one = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const struct {
    std::string header;
    size_t bytes;
    const char* message;
  } cases[] = {
      {"{" + one + "}", 7, "is cut off: 'a' ends at byte 8"},
      {"{" + one + "}", 9, "1 bytes after its last tensor"},
      {"{" + one + "," + one + "}", 8, "'a' twice"},
      {R"({"a":{"dtype":"F32","dtype":"I8","shape":[2],"data_offsets":[0,8]}})", 8, "'dtype' twice"},
      {"{" + one + R"(,"b":{"dtype":"I8","shape":[4],"data_offsets":[4,8]}})", 8, "'b' begins at byte 4"},
      {"{" + one + R"(,"b":{"dtype":"I8","shape":[1],"data_offsets":[9,10]}})", 10, "'b' begins at byte 9"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "takes 12 bytes, not 8"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,8]}})", 8, "more bytes than"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "no valid shape"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "no valid shape"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "'a' begins at byte 8"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "no valid data_offsets"},
      {R"({"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})", 8, "has the type F8_E4M3"},
      {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8, "no valid dtype"},
      {R"({"a":[]})", 0, "no valid entry"},
      {R"({"__metadata__":{"a":1}})", 0, "which is no text"},
      {"{" + one, 8, "no JSON"},
      {"[1]", 8, "does not start with '{'"},
      {R"({"a":[[[[[[[1]]]]]]]})", 8, "nested too deeply"},
  };
  for (const auto& c : cases) {
    const std::string path = with_header("broken.safetensors", c.header, c.bytes);
    const std::string error = error_of([&] { read_safetensors(path); });
    EXPECT_THAT(error, HasSubstr(c.message)) << c.header;
    EXPECT_THAT(error, HasSubstr("broken.safetensors")) << c.header;
  }
  const std::string huge = testing::TempDir() + "huge.safetensors";
  std::ofstream(huge, std::ios::binary) << std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{", 9);
  EXPECT_THAT(error_of([&] { read_safetensors(huge); }), HasSubstr("at most 100000000 are allowed"));
  std::ofstream(huge, std::ios::binary) << "abc";
  EXPECT_THAT(error_of([&] { read_safetensors(huge); }), HasSubstr("it has 3 bytes"));
}

}  // namespace
}  // namespace onnx_train::safetensors_test
