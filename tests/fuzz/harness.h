// Harnesses hand the bytes of one input to what reads files, texts or messages of others. A reader gives a value or an
// Error; anything else that it throws, and every report of a sanitizer, is a fault. libFuzzer makes the inputs
// (main.cc, one program a harness), and the unit tests run the harnesses on the inputs in corpus/ (replay_test.cc).
// One process runs one harness at a time, in one thread.
//
// A harness is a source of its name, a declaration and a row here, and some small inputs in corpus/NAME.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "onnx_passes/ir/error.h"

namespace onnx_train::fuzz {

using Input = std::span<const uint8_t>;

void model(Input input);                 // load, ONNX's checker, import
void external_data(Input input);         // a model whose tensors are in files beside it
void training_model(Input input);        // entry points, checkpoints
void text_graph(Input input);            // a model as text, with the options that its comments set
void onnxruntime_training(Input input);  // checkpoints of both kinds, models with a loss, optimizers
void safetensors(Input input);
void npz(Input input);
void npy(Input input);
void csv(Input input);  // of numbers and texts, of pictures, of texts with labels
void libsvm(Input input);
void idx(Input input);
void coco(Input input);
void pictures(Input input);  // PNG, JPEG, WebP and their EXIF
void tokens(Input input);
void chat_template(Input input);  // of Jinja, written for two messages
void tokenizer(Input input);      // a tokenizer.json, and texts through it
void store_queries(Input input);  // what connects to the port of rank 0 says
void options(Input input);        // options.json, --config
void option_texts(Input input);   // losses, optimizers, schedules, steps on pictures, ... as options write them
void run_files(Input input);      // what a run has left in its folder

struct Harness {
  const char* name;
  void (*run)(Input input);
  size_t longest;  // in bytes: libFuzzer's -max_len. All have 2 GB of memory and 2 s (CMakeLists.txt)
};

// CMakeLists.txt reads these rows, too.
inline constexpr Harness kHarnesses[] = {
    {"model", model, 32768},
    {"external_data", external_data, 8192},
    {"training_model", training_model, 65536},
    {"text_graph", text_graph, 8192},
    {"onnxruntime_training", onnxruntime_training, 8192},
    {"safetensors", safetensors, 4096},
    {"npz", npz, 4096},
    {"npy", npy, 1024},
    {"csv", csv, 2048},
    {"libsvm", libsvm, 1024},
    {"idx", idx, 2048},
    {"coco", coco, 4096},
    {"pictures", pictures, 16384},
    {"tokens", tokens, 4096},
    {"tokenizer", tokenizer, 8192},
    {"chat_template", chat_template, 4096},
    {"store_queries", store_queries, 4096},
    {"options", options, 4096},
    {"option_texts", option_texts, 512},
    {"run_files", run_files, 4096},
};

// Calls f, which may throw Error and nothing else.
template <typename F>
void try_to(const F& f) {
  try {
    f();
  } catch (const Error&) {
  }
}

inline std::string text_of(Input input) { return {reinterpret_cast<const char*>(input.data()), input.size()}; }

// A folder of this process, which is removed at its end.
const std::filesystem::path& folder();
// Writes the bytes to a new file of this name in it; returns the path.
std::string file_of(Input input, const std::string& name);

}  // namespace onnx_train::fuzz
