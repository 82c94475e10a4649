#include "runtime/data/files/tokens.h"
#include "runtime/data/loading/source.h"

#include "runtime/data/tables/labelled_texts.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {
namespace {

const std::vector<InputSpec> kBlocks = {{"tokens", {DType::kInt64, Dims{"batch", "length"}}},
                                        {"labels", {DType::kInt64, Dims{"batch", "length"}}, true}};
const std::vector<InputSpec> kTexts = {{"tokens", {DType::kInt64, Dims{"batch", 4}}},
                                       {"labels", {DType::kInt64, Dims{"batch"}}, true}};

}  // namespace

void tokens(Input input) {
  ReadOptions reading;
  reading.block_size = 3;
  for (const char* name : {"x.bin", "x.npy", "x.txt", "x.jsonl"}) {
    const std::string path = file_of(input, name);
    try_to([&] {
      const Dataset data = load_dataset(path, kBlocks, DataRole::kTrain, {}, reading);
      if (data.num_samples() == 0) return;
      TensorMap batch;
      for (const int64_t sample : {int64_t{0}, data.num_samples() - 1}) data.gather(&sample, 1, &batch);
    });
  }
  try_to([&] { open_labelled_texts(read_json_lines((folder() / "x.jsonl").string()), kTexts, {}); });
}

}  // namespace onnx_train::fuzz
