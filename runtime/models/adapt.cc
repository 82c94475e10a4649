#include "runtime/models/adapt.h"

#include <charconv>
#include <functional>
#include <sstream>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/qat.h"
#include "onnx_passes/adapt/stored_weights.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/tokens/separate_documents.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/tokenizer/tokenizer.h"
#include "runtime/models/build_settings.h"

namespace onnx_train {
namespace {

// The one kind of adapter that is asked for; a model has one.
AdapterSpec adapter_spec(const AdaptOptions& options) {
  const int kinds =
      int{!options.lora.empty()} + int{!options.ia3.empty()} + int{options.bitfit} + int{!options.adapter.empty()};
  if (kinds > 1) fail_as(ErrorCode::kUsage, "take one of --lora, --ia3, --bitfit and --adapter");
  if (options.bitfit) return parse_adapter("bitfit", {});
  if (!options.ia3.empty()) return parse_adapter("ia3", options.ia3);
  return options.lora.empty() ? AdapterSpec() : parse_adapter("lora", options.lora);
}

StorageSpec base_spec(const AdaptOptions& options) {
  return parse_storage(options.quantize_base, "--quantize-base", {"int8", "int4"});
}

// "512", or the folder of a tokenizer, whose tokens are counted; "multiple=64".
VocabularySize vocabulary_size(const std::vector<std::string>& pieces) {
  constexpr int64_t kMost = int64_t{1} << 31;
  VocabularySize size;
  for (const std::string& piece : pieces) {
    const bool is_multiple = piece.starts_with("multiple=");
    const std::string text = is_multiple ? piece.substr(piece.find('=') + 1) : piece;
    int64_t number = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number = fault == std::errc() && end == text.data() + text.size() && number > 0 && number < kMost;
    if (is_multiple ? !is_number : size.tokens > 0 || (!is_number && text == "auto"))
      fail_as(ErrorCode::kUsage, "--resize-vocabulary '", piece,
              "': write N or a tokenizer's folder, and multiple=N; auto is of fit, where --tokenizer is given");
    if (is_number) {
      (is_multiple ? size.multiple : size.tokens) = number;
    } else {
      size.tokens = Tokenizer(text).largest() + 1;
      size.is_least = true;
    }
  }
  if (size.tokens == 0) fail_as(ErrorCode::kUsage, "--resize-vocabulary needs a number of tokens, or a tokenizer");
  return size;
}

// A pass that is made when it runs, because that reads a file or an option that may be missing.
Pass on_run(const char* name, const std::function<Pass()>& make) {
  return {name, [make](Model& model) { return make().run(model); }};
}

}  // namespace

void fit_vocabulary(const std::string& tokenizer, AdaptOptions* options) {
  if (!tokenizer.empty()) std::ranges::replace(options->vocabulary, "auto", tokenizer);
}

std::vector<CommandOption> adapt_options(AdaptOptions* o) {
  return {{"--tie", &o->tie,
           "A=B: weights with the same numbers, also transposed, sliced or repeated, that are one; `check` names those "
           "that "
           "may be",
           "A=B"},
          {"--untie", &o->untie,
           "weights that the file has once and that are several: one for each node that reads them", "NAMES"},
          {"--cut", &o->cut, "inner values that become the outputs; what only the old outputs need is gone", "VALUES"},
          {"--join", {&o->join, file_with(".onnx")}, "append a model whose inputs have the names of outputs", "FILE"},
          {"--resize-vocabulary", &o->vocabulary,
           "N, or a tokenizer's folder: rows for as many tokens in the table that they are looked up in, and scores; "
           "new ones are the mean of the others; multiple=64 rounds up; auto of fit: as --tokenizer has",
           "N|TOKENIZER"},
          {"--head", &o->heads, "OUTPUT=N: a new last layer with N outputs, such as logits=3, drawn from --seed",
           "OUTPUT=N"},
          {"--weights", &o->weights, "initial values by name, from .safetensors or .npz [the model's]", "FILE"},
          {"--weights-partial", &o->weights_partial,
           "with --weights: weights that FILE lacks stay as they are; without, they are an error"},
          {"--lora", &o->lora,
           "train adapters of low rank beside frozen layers: rank=8, alpha=8, dropout=0, rslora=false, dora=false, "
           "targets=PATTERNS of layers [all linear layers but the last]; rank.PATTERN=4, alpha.PATTERN=16 of some",
           "KEY=VALUE"},
          {"--ia3", &o->ia3, "train scales of layers' outputs, or of inputs: targets=PATTERNS, feedforward=PATTERNS",
           "KEY=VALUE"},
          {"--bitfit", &o->bitfit, "train the biases alone"},
          {"--qat",
           &o->qat,
           "train for integers: int8, weights=per_channel|per_tensor, activations=uint8|int8, observer=ema|minmax, "
           "averaging=0.01 of ema (docs/quantization.md)",
           "int8",
           false,
           {},
           [] { return Words{"int8"}; }},
          {"--quantize-base",
           &o->quantize_base,
           "store the frozen weights beside --lora as integers: int8 or int4, block=64 elements with one scale",
           "TYPE",
           false,
           {},
           [] {
             return Words{"int8", "int4"};
           }},
          {"--adapter", &o->adapter,
           "start from the adapter in a folder that PEFT or export -o DIR/ wrote, or from a sum: A,B=0.5; "
           "combination=cat adds what they compute, linear as PEFT's linear [cat]",
           "DIR"},
          {"--document-mask", &o->document_mask,
           "several documents in a row of tokens, as --packing of fit puts them, do not read each other: an input "
           "document_starts says where each starts"}};
}

std::vector<PassRow> adapt_rows(const AdaptOptions& options, const std::string& dtype) {
  const AdapterSpec spec = adapter_spec(options);
  if (options.weights.empty() && options.weights_partial)
    fail_as(ErrorCode::kUsage, "--weights-partial is of --weights FILE");
  const bool has_folder = !options.adapter.empty(), stores_base = !options.quantize_base.empty();
  const auto store = [=](bool new_adapters) {
    return on_run("quantize_base", [=] { return quantize_base(base_spec(options), new_adapters); });
  };
  const auto weights = [=] {
    return assign_weights(std::make_shared<TensorMap>(read_arrays(options.weights)), options.weights,
                          options.weights_partial ? WeightsOfFile::kSome : WeightsOfFile::kAll);
  };
  const auto other = [=] {
    return join(std::make_shared<Model>(load_forward_model(options.join, dtype)), options.join);
  };
  const Pass load{"load_adapters", [=](Model& model) {
                    load_adapters(&model, options.adapter);
                    return true;
                  }};
  const auto vocabulary = [=] { return resize_vocabulary(vocabulary_size(options.vocabulary)); };
  const auto qat = [=] { return quantization_aware(parse_qat(options.qat)); };
  return {
      {separate_documents(), "keeps documents of a row of tokens apart", options.document_mask, "--document-mask"},
      {tie(options.tie), "makes one of two weights with the same numbers", !options.tie.empty(), "--tie"},
      {untie(options.untie), "makes several of one weight", !options.untie.empty(), "--untie"},
      {cut(options.cut), "makes outputs of inner values", !options.cut.empty(), "--cut"},
      {on_run("join", other), "appends another model", !options.join.empty(), "--join"},
      {on_run("resize_vocabulary", vocabulary), "gives tokens more rows and scores", !options.vocabulary.empty(),
       "--resize-vocabulary"},
      {replace_heads(options.heads, options.seed), "gives outputs new last layers", !options.heads.empty(), "--head"},
      {on_run("assign_weights", weights), "reads weights from a file", !options.weights.empty(), "--weights"},
      {add_adapters(spec, options.seed), "adds adapters beside layers", !spec.method.empty(),
       "--lora, --ia3 or --bitfit"},
      {store(true), "stores the frozen weights beside adapters as integers", stores_base && !has_folder,
       "--quantize-base"},
      {on_run("quantization_aware", qat), "makes training round as integers do", !options.qat.empty(), "--qat"},
      {load, "adds the adapters of a folder", has_folder, "--adapter"},
      {store(false), "", stores_base && has_folder, "--quantize-base"},
  };
}

void adapt(Model* model, const AdaptOptions& options, const std::string& dtype, const PipelineOptions& pipeline) {
  run_pipeline(wanted_passes(adapt_rows(options, dtype)), model, pipeline);
}

std::vector<std::string> adapted_notes(const Model& model) {
  std::vector<std::string> lines;
  std::istringstream text(model.metadata(kAdapted));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

}  // namespace onnx_train
