// What --lora, --ia3 and --bitfit say: the method and its numbers, with the defaults of PEFT
// (https://huggingface.co/docs/peft). Plain values; any thread.
//
//   lora     y + s B A dropout(x), s = alpha / rank, or alpha / √rank (rslora); A uniform in ±1/√fan_in, B zeros
//            (Hu et al. 2021; Kalajdzievski 2023). A convolution has an A of its own form with `rank` channels, B 1x1
//            With dora the layer of m (W + s B A) / |W + s B A|, |..| the norm of each output's weights, in which no
//            gradient is computed, and m that of W (Liu et al. 2024)
//   ia3      l y, or the layer of l x for feedforward ones, l ones (Liu et al. 2022)
//   bitfit   trains the biases and nothing else (Ben Zaken et al. 2021)
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace onnx_train {

struct AdapterSpec {
  std::string method;  // "lora", "ia3", "bitfit"; "" for none
  int64_t rank = 8;
  double alpha = 8, dropout = 0;
  bool rslora = false, dora = false;
  std::vector<std::string>
      targets;  // modules: names, globs, last parts of names; empty: all linear layers but the last
  std::vector<std::string> feedforward;  // those of ia3 whose input is scaled
  bool exact = false;                    // targets are whole names of modules
  // Numbers of layers that are not `rank` and `alpha`: the first pattern that names the layer counts.
  std::vector<std::pair<std::string, int64_t>> rank_patterns;
  std::vector<std::pair<std::string, double>> alpha_patterns;

  int64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  // s for the layer of this module, whose A and B have this rank.
  double scale(const std::string& module, int64_t of_rank) const;
};

// Whether a pattern names a module: a name, the last parts of one, or a glob of either; after '^' of whole names alone.
bool names_module(const std::string& pattern, const std::string& module);

// Parses "rank=8", "alpha=16", "rank.query=4", "targets=*.query", "*.value": a piece without `=` continues the list
// before it. Throws Error that names the piece.
AdapterSpec parse_adapter(const std::string& method, const std::vector<std::string>& pieces);
// One line that parse_adapter_text reads: "lora rank=8,alpha=16,dropout=0,rslora=false", with ",dora=true" and
// ",rank.query=4". Without the targets.
std::string to_string(const AdapterSpec& spec);
AdapterSpec parse_adapter_text(const std::string& text);

}  // namespace onnx_train
