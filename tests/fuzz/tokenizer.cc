#include "runtime/data/tokenizer/tokenizer.h"

#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void tokenizer(Input input) {
  const std::string path = file_of(input, "tokenizer.json");
  try_to([&] {
    Tokenizer made(path);
    for (const char* text :
         {"", "Hello  wörld, ab ab<end>!\n", "\xE4\xBD\xA0 e\xCC\x81 \xF0\x9F\x98\x80 1234", "\xff"}) {
      try_to([&] {
        bool is_cut = false;
        std::vector<int64_t> tokens = made.encode_sample(text, "a text", 8, &is_cut);
        tokens.push_back(made.largest());
        made.decode(tokens);
        made.decode(tokens, /*skips_special=*/false);
      });
    }
  });
}

}  // namespace onnx_train::fuzz
