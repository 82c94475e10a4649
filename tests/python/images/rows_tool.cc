// Shows the tests what a network reads of pictures with boxes or masks: rows_tool DATA HEIGHT WIDTH MOST PREPROCESS
// AUGMENT SEED OUT.npz writes `image`, float[N, 3, HEIGHT, WIDTH], and `boxes`, float[N, M, 5] or the masks, of all
// samples in the epoch 1. MOST is M, 0 leaves it open. On failure it prints the message and returns 1.
#include <cstdio>
#include <cstdlib>

#include "onnx_passes/ir/error.h"
#include "runtime/data/images/rows.h"
#include "runtime/data/loading/source.h"

namespace onnx_train {
namespace {

InputSpec spec(const char* name, const std::vector<Dim>& dims, bool from_loss) {
  return {name, TensorType{DType::kFloat, Dims(dims.begin(), dims.end())}, from_loss, false, ""};
}

Tensor all_rows(const RowReader& reader, const AugmentKey& key) {
  Tensor all(reader.spec().dtype, reader.spec().shape);
  const int64_t rows = all.shape()[0];
  for (int64_t i = 0; i < rows; ++i) {
    reader.read(i, &key, static_cast<char*>(all.data()) + static_cast<size_t>(i) * (all.bytes() / size_t(rows)));
  }
  return all;
}

void write_rows(char** arguments) {
  const Dim height(int64_t(std::atoi(arguments[2]))), width(int64_t(std::atoi(arguments[3])));
  const int64_t most = std::atoi(arguments[4]);
  const std::vector<InputSpec> inputs = {
      spec("image", {Dim("N"), Dim(int64_t{3}), height, width}, false),
      spec("boxes", {Dim("N"), most > 0 ? Dim(most) : Dim("M"), Dim(int64_t{5})}, true)};
  Preprocess preprocess = Preprocess::of_steps(arguments[5], inputs);
  DataArrays data = open_data(arguments[1], inputs);
  add_pictures(inputs, {}, arguments[6], true, &preprocess, &data);
  const AugmentKey key{uint64_t(std::atoi(arguments[7])), /*epoch=*/1};
  TensorMap arrays;
  for (const auto& [name, rows] : data.arrays) arrays[name] = all_rows(*rows.reader(), key);
  write_arrays(arguments[8], arrays);
  for (const std::string& note : data.notes) std::printf("%s\n", note.c_str());
}

}  // namespace
}  // namespace onnx_train

int main(int argc, char** argv) {
  try {
    if (argc == 9) onnx_train::write_rows(argv);
    return argc == 9 ? 0 : 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
