// Makes training models by onnx_passes and platform/ alone, so that what another system writes can be compared with what
// Linux writes (same_passes.py). Each line of the list is IN, OUT, LOSS ("": what fits), OPTIMIZER, PRECISION and INIT with
// tabs between them. Writes OUT and the plain step OUT.step, and says for each line "OUT: N nodes" or why there is none.
//     passes_alone LIST
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "platform/terminal.h"

namespace onnx_train {
namespace {

size_t build(const std::vector<std::string>& words) {
  Model model = import_model(load_message(words.at(0)));
  BuildOptions options;
  options.loss = words.at(2).empty() ? default_loss(*model.graph).loss : words.at(2);
  options.optimizer = words.at(3);
  options.precision = parse_precision(words.at(4));
  options.init = words.at(5);
  options.seed = 7;
  build_training_model(&model, options);
  save_model(model, words.at(1));
  const Model step = flatten(model, Entry::kStep);
  save_model(step, words.at(1) + ".step");
  return step.graph->num_nodes();
}

void run(const std::string& list) {
  std::istringstream lines(read_file(list));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream text(line);
    std::vector<std::string> words;
    for (std::string word; std::getline(text, word, '\t');) words.push_back(word);
    words.resize(6);
    try {
      std::printf("%s: %zu nodes\n", words[1].c_str(), build(words));
    } catch (const Error& error) {
      std::printf("%s: %s\n", words[1].c_str(), error.what());
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace onnx_train

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  onnx_train::platform::prepare_standard_streams();
  try {
    onnx_train::run(argv[1]);
    return 0;
  } catch (const onnx_train::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
