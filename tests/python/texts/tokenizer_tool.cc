// Shows the tests the tokens of texts: tokenizer_tool TOKENIZER TEXTS OUT reads a JSON list of texts, and writes a list
// with the tokens of each, those with what is put around a text, and what they become again, without special tokens and
// with them. On failure it prints the message and returns 1.
#include <cstdio>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  using namespace onnx_train;
  if (argc != 3 && argc != 4) return 2;
  try {
    Tokenizer tokenizer(argv[1]);
    nlohmann::json texts, shown = nlohmann::json::array();
    std::ifstream(argv[2]) >> texts;
    if (argc == 3) {
      const auto plain = texts.get<std::vector<std::string>>();
      const std::clock_t start = std::clock();
      size_t tokens = 0;
      for (const std::string& text : plain) tokens += tokenizer.encode(text, "a text").size();
      std::printf("%.6f %zu\n", static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, tokens);
      return 0;
    }
    for (const std::string text : texts) {
      bool is_cut = false;
      const std::vector<int64_t> tokens = tokenizer.encode(text, "a text");
      shown.push_back({tokens, tokenizer.encode_sample(text, "a text", std::numeric_limits<int64_t>::max(), &is_cut),
                       tokenizer.decode(tokens), tokenizer.decode(tokens, /*skips_special=*/false)});
    }
    std::ofstream(argv[3]) << shown;
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
