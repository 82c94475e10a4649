// The options of data, once for the command, the C interface and Python: how files are read, and which of their samples
// a training takes. Plain values; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/support/options.h"
#include "runtime/support/run_settings.h"

namespace onnx_train {

// How data enter a network, as a user says it.
struct DataOptions {
  std::vector<std::string> scales = {};       // as --scale takes them
  std::string preprocess = "", augment = "";  // as --preprocess and --augment take them
  int64_t block_size = 0;                     // tokens of a sample; 0: as many as the model takes
  std::optional<int64_t> document_end = {};   // the label after this token is ignored
  bool shift_labels = false;                  // labels are the tokens themselves, and become those that follow
  std::string tokenizer = "";       // a tokenizer.json, or its folder: what makes tokens of texts; "": bytes are tokens
  std::string packing = "";         // how documents fill samples, texts/packing.h; "": blocks across documents
  bool no_token_cache = false;      // tokens of texts are not kept in files (files/token_cache.h)
  std::string token_type = "";      // "uint16" or "uint32": of .bin files without a header; "": what it looks like
  std::string missing = "";         // "mean", "zero", "drop": what a table's missing values become; "": an error
  std::string on_bad_picture = "";  // "skip" leaves out samples whose picture cannot be read; "stop", "": an error
  std::vector<std::string> mask_values = {};  // what masks hold for the classes 0, 1, ...; none: these numbers
  std::string label_separator = "";           // between the classes of a picture in a table; "": it has one
  std::vector<std::string> columns = {};      // "x=a", "b", "y=c": the columns of inputs
  std::vector<std::string> map = {};          // "column=input": names that differ from the model's

  bool says_how() const { return !scales.empty() || !preprocess.empty(); }
};

// Which samples a training takes, in which order.
struct SampleOptions {
  int64_t skip = 0;              // samples at the start of the data that are left out
  int64_t limit = 0;             // the first samples after them alone; 0: all
  double val_split = 0;          // this part of them is for evaluation
  int64_t folds = 0, fold = 0;   // or fold `fold` of `folds`, counted from 1
  int64_t overfit_batches = 0;   // train on as many batches alone; 0: on all
  bool class_balance = false;    // every class is as likely as any other
  bool drop_last = false;        // no short batch at the end of an epoch
  bool stream = false;           // texts are read while they are trained on: loading/text_stream.h
  int64_t shuffle_buffer = 0;    // samples that a stream reads, and shuffles, at a time; 0: 1000
  bool group_by_length = false;  // batches of texts of like length, which are as long as their longest
};

std::vector<CommandOption> data_options(DataOptions* options);
// The rows of --scale and --preprocess, for all that reads data, and of --augment, for training.
CommandOption scale_option(std::vector<std::string>* scales);
CommandOption preprocess_option(std::string* steps);
CommandOption augment_option(std::string* steps);
std::vector<CommandOption> sample_options(SampleOptions* options);

// As a run records them: fixed, since they decide what a training sees. "none" for what is not given.
std::vector<Setting> fixed_settings(const std::vector<CommandOption>& options);

// "x=a", "b", "y=c" as {x: a, b; y: c}, in this order. `option` is named by the UsageError for a text without a name.
struct NamedList {
  std::string name;
  std::vector<std::string> values;
};
std::vector<NamedList> named_lists(const std::vector<std::string>& texts, const char* option);

}  // namespace onnx_train
