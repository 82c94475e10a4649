#include "runtime/data/data_options.h"

#include <algorithm>
#include <variant>

#include "onnx_passes/ir/error.h"
#include "runtime/data/preprocess.h"
#include "runtime/data/steps.h"

namespace onnx_train {

std::vector<CommandOption> data_options(DataOptions* options) {
  return {
      {"--block-size",
       {&options->block_size, Range{1, false, 0x1p31}},
       "tokens of a sample, whose labels are the tokens that follow [the model's, if it is fixed]",
       "N"},
      {"--document-end", &options->document_end,
       "the token that ends a document: the label after it is ignored [labels cross documents]", "ID"},
      {"--shift-labels", &options->shift_labels,
       "labels [batch, tokens] are a copy of the tokens, as for the models of transformers, and become the tokens "
       "that follow"},
      {"--tokenizer", &options->tokenizer,
       "makes the tokens of texts: a tokenizer.json, or the folder of a model that holds it [bytes are tokens]",
       "FILE"},
      {"--packing",
       &options->packing,
       "how documents fill samples: none, a document each; bfd, several, the longest that fits first, and the end of "
       "longer ones is left out; bfd_split, which is a document of its own; wrapped, one after the other. None of "
       "them reads or predicts another [blocks across documents, conversations one each]",
       "HOW",
       false,
       {"none", "bfd", "bfd_split", "wrapped"}},
      {"--no-token-cache", &options->no_token_cache,
       "do not keep the tokens of texts in a file beside them for the next run"},
      {"--token-type",
       &options->token_type,
       "of .bin files of tokens without a header [what it looks like]",
       "TYPE",
       false,
       {"uint16", "uint32"}},
      {"--missing",
       &options->missing,
       "what missing values of a table become: the column's mean, zero, or drop the row [an error]",
       "HOW",
       false,
       {"mean", "zero", "drop"}},
      {"--on-bad-picture",
       &options->on_bad_picture,
       "a picture that cannot be read ends the run, stop, or all are read at the start and such are left out, skip "
       "[stop]",
       "HOW",
       false,
       {"stop", "skip"}},
      {"--mask-values", &options->mask_values,
       "what masks hold for the classes 0, 1, ...: 0,255 for black and white [these numbers themselves]", "A,B"},
      {"--label-separator", &options->label_separator,
       "what stands between the classes of a picture in a CSV, if it has several: ';' of cat;dog", "TEXT"},
      {"--columns", &options->columns, "the columns of a table for an input, in their order: x=a,b,c", "INPUT=A,B"},
      {"--map", &options->map, "a column or an array that has another name than the input it is for: text=tokens",
       "COLUMN=INPUT"}};
}

CommandOption scale_option(std::vector<std::string>* scales) {
  return {"--scale",
          {scales, check_scale},
          "multiply the network's input by X, or those named: 1/255 for bytes to 0..1, image=1/255; the trained model "
          "keeps it [as the model was trained; 1]",
          "[INPUT=]X"};
}

CommandOption preprocess_option(std::string* steps) {
  return {
      "--preprocess",
      steps,
      "what is done to the network's input, such as 'resize(256), crop(224), normalize(imagenet)'; the trained model "
      "keeps it (docs/data.md) [as the model was trained; for pictures in files, what its input suggests]",
      "STEPS",
      false,
      {},
      preprocess_step_names};
}

CommandOption augment_option(std::string* steps) {
  return {"--augment",
          steps,
          "random changes of pictures, such as 'random_resized_crop, flip, jitter(0.4)' (docs/data.md)",
          "STEPS",
          false,
          {},
          augment_step_names};
}

std::vector<CommandOption> sample_options(SampleOptions* options) {
  return {{"--skip", {&options->skip, kCount}, "leave out the first N samples of --data", "N"},
          {"--limit", {&options->limit, kCount}, "read the first N samples of --data alone", "N"},
          {"--val-split",
           {&options->val_split, Range{0, true, 0.99}},
           "evaluate on this part of --data, 0.1 for a tenth, drawn by --seed, and train on the rest",
           "PART"},
          {"--folds", {&options->folds, Range{2}}, "cross-validation: the parts of --data, drawn by --seed", "K"},
          {"--fold", {&options->fold, kCount}, "the part to evaluate on, 1 to K; the others are trained on", "I"},
          {"--overfit-batches",
           {&options->overfit_batches, kCount},
           "train on N batches alone, drawn by --seed, again and again: can the model learn them?",
           "N"},
          {"--class-balance", &options->class_balance,
           "draw samples so that all classes are as frequent, some samples twice and some not at all"},
          {"--drop-last", &options->drop_last, "leave out the short batch at the end of an epoch"},
          {"--stream",
           &options->stream,
           "read texts while they are trained on, shard after shard, never whole in memory; so is --data - of texts",
           "",
           false,
           {},
           nullptr,
           TakenBy::kCommand},
          {"--shuffle-buffer",
           {&options->shuffle_buffer, kCount},
           "samples that a stream reads, and shuffles, at a time [1000]",
           "N",
           false,
           {},
           nullptr,
           TakenBy::kCommand},
          {"--group-by-length", &options->group_by_length,
           "batches of documents of like length, each as long as its longest"}};
}

std::vector<Setting> fixed_settings(const std::vector<CommandOption>& options) {
  std::vector<Setting> settings;
  for (const CommandOption& option : options) {
    if (key_of(option) == "no-token-cache") continue;  // where tokens are kept decides nothing
    const std::string text = value_of(option).value_or("");
    const bool may_be_0 = std::holds_alternative<std::optional<int64_t>*>(option.target.to);
    const bool is_given = !text.empty() && text != "false" && (text != "0" || may_be_0);
    settings.push_back({key_of(option), is_given ? text : "none", OnResume::kFixed});
  }
  return settings;
}

std::vector<NamedList> named_lists(const std::vector<std::string>& texts, const char* option) {
  std::vector<NamedList> lists;
  for (const std::string& text : texts) {
    const size_t at = text.find('=');
    if (at == 0 || (at == std::string::npos && lists.empty()) || at + 1 == text.size()) {
      throw UsageError(concat(option, ": '", text, "' is not NAME=NAME"));
    }
    if (at == std::string::npos) {
      lists.back().values.push_back(text);
    } else {
      lists.push_back({text.substr(0, at), {text.substr(at + 1)}});
    }
  }
  return lists;
}

}  // namespace onnx_train
