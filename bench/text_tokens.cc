// Seconds of processor time that the tokens of texts take: text_tokens_bench TOKENIZER TEXTS reads a JSON list of texts
// and prints the seconds and the number of tokens. One thread. bench/text_tokens.py compares it with Hugging Face's.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/data/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "see bench/text_tokens.cc for the arguments\n"), 2;
  try {
    onnx_train::Tokenizer tokenizer(argv[1]);
    std::vector<std::string> texts;
    nlohmann::json::parse(std::ifstream(argv[2])).get_to(texts);
    const std::clock_t start = std::clock();
    size_t tokens = 0;
    for (const std::string& text : texts) tokens += tokenizer.encode(text, "a text").size();
    std::printf("%.6f %zu\n", static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, tokens);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
