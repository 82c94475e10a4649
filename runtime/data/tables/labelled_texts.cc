#include "runtime/data/tables/labelled_texts.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {
namespace {

constexpr const char* kText = "text";

std::optional<size_t> place_in(const std::vector<std::string>& columns, const std::string& name) {
  const auto found = std::find(columns.begin(), columns.end(), name);
  return found == columns.end() ? std::nullopt : std::optional(static_cast<size_t>(found - columns.begin()));
}

// The column that the model was trained on, or "text".
std::string known_column(const std::string& input, const ReadOptions& options) {
  const KnownColumns known = trained_columns(options.metadata);
  const auto found = known.find(input);
  return found != known.end() && found->second.size() == 1 ? found->second[0] : kText;
}

// The column that --map names for the tokens, or that is known.
std::optional<size_t> text_column(const DataTable& table, const std::string& input, const ReadOptions& options) {
  for (const NamedList& pair : named_lists(options.map, "--map")) {
    if (pair.values[0] == input) return place_in(table.columns, pair.name);
  }
  return place_in(table.columns, known_column(input, options));
}

// What belongs to the texts. A column class or label is that of the target, unless one has its name.
DataTable without_column(const DataTable& table, size_t left_out, const std::string& target) {
  DataTable rest;
  rest.path = table.path;
  rest.lines = table.lines;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (i != left_out) rest.columns.push_back(table.columns[i]);
  }
  for (size_t i = 0; i < table.fields.size(); ++i) {
    if (i % table.columns.size() != left_out) rest.fields.push_back(table.fields[i]);
  }
  if (target.empty() || place_in(rest.columns, target)) return rest;
  for (const std::string& name : kLabelColumns) {
    if (const auto place = place_in(rest.columns, name)) {
      rest.columns[*place] = target;
      break;
    }
  }
  return rest;
}

// --map without the pair for the texts, whose column is gone.
std::vector<std::string> without_input(const std::vector<std::string>& map, const std::string& input) {
  std::vector<std::string> rest;
  for (const NamedList& pair : named_lists(map, "--map")) {
    if (pair.values[0] != input) rest.push_back(pair.name + "=" + pair.values[0]);
  }
  return rest;
}

struct SampleTokens {
  std::vector<int64_t> tokens;
  bool is_cut;
};

SampleTokens bytes_of(std::string_view text, int64_t most) {
  SampleTokens sample{{}, std::ssize(text) > most};
  for (const char c : text.substr(0, static_cast<size_t>(most))) sample.tokens.push_back(static_cast<unsigned char>(c));
  return sample;
}

SampleTokens tokens_of(std::string_view text, const std::string& where, int64_t most, Tokenizer* tokenizer) {
  SampleTokens sample{};
  sample.tokens = tokenizer->encode_sample(text, where, most, &sample.is_cut);
  return sample;
}

std::string target_of_texts(const std::vector<InputSpec>& inputs) {
  for (const InputSpec& spec : inputs) {
    if (spec.from_loss && spec.role.empty()) return spec.name;
  }
  return "";
}

}  // namespace

bool takes_labelled_texts(const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  const TokenInputs to = token_inputs(inputs);
  if (!to.tokens || to.labels) return false;
  if (!first_label(inputs).empty() || trained_columns(options.metadata).count(to.tokens->name) > 0) return true;
  return options.writes_tokens && !options.writes_tokens(to.tokens->name);
}

bool takes_texts_alone(const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  return takes_labelled_texts(inputs, options) && first_label(inputs).empty();
}

DataTable read_text_lines(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  DataTable table;
  table.path = path;
  table.owner = file;
  table.columns = {known_column(token_inputs(inputs).tokens->name, options)};
  for (int64_t line = 1; !text.empty(); ++line) {
    std::string_view written = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(written.size() + 1, text.size()));
    if (written.ends_with('\r')) written.remove_suffix(1);
    table.fields.push_back(written);
    table.lines.push_back(line);
  }
  return table;
}

DataTable read_json_lines(const std::string& path) {
  const auto file = MappedFile::open(path);
  std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  DataTable table;
  table.path = path;
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view written = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(written.size() + 1, text.size()));
    if (written.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = nlohmann::json::parse(written, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) fail_as(ErrorCode::kTableField, path, ", line ", line, " is no JSON object");
    if (table.columns.empty()) {
      for (const auto& [key, value] : json.items()) {
        if (value.is_primitive()) table.columns.push_back(key);
      }
    }
    for (const std::string& column : table.columns) {
      const auto found = json.find(column);
      const bool is_there = found != json.end() && !found->is_null();
      if (is_there && !found->is_primitive()) {
        fail_as(ErrorCode::kTableField, path, ", line ", line, ": '", column, "' is neither a text nor a number");
      }
      table.fields.push_back(table.unquoted.emplace_back(!is_there            ? ""
                                                         : found->is_string() ? found->get<std::string>()
                                                                              : found->dump()));
    }
    table.lines.push_back(line);
  }
  if (table.columns.empty()) fail_as(ErrorCode::kFile, path, " holds no JSON objects with texts or numbers");
  return table;
}

std::optional<DataArrays> open_labelled_texts(const DataTable& table, const std::vector<InputSpec>& inputs,
                                              const ReadOptions& options) {
  const InputSpec& tokens = *token_inputs(inputs).tokens;
  const auto column = text_column(table, tokens.name, options);
  if (!column) return std::nullopt;
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(options);
  if (!tokenizer) check_is_of_bytes(table.path, tokens.name, options);
  std::vector<InputSpec> others;
  for (const InputSpec& spec : inputs) {
    if (spec.from_loss) others.push_back(spec);
  }
  ReadOptions reading = options;
  reading.map = without_input(options.map, tokens.name);
  std::vector<size_t> rows;
  DataArrays arrays = arrays_of(without_column(table, *column, target_of_texts(inputs)), others, reading, &rows);
  if (rows.empty()) fail_as(ErrorCode::kData, table.path, " holds no texts");

  const int64_t block = block_of(tokens, options);
  const Shape shape = {static_cast<int64_t>(rows.size()), block};
  const int64_t padding = tokenizer ? tokenizer->padding() : 0;
  Tensor samples(tokenizer ? DType::kInt64 : DType::kUint8, shape);
  std::vector<int64_t> lengths;
  int64_t cut = 0, shorter = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string_view text = table.field(rows[i], *column);
    const std::string where = concat(table.path, ", line ", table.lines[rows[i]]);
    const SampleTokens sample = tokenizer ? tokens_of(text, where, block, tokenizer.get()) : bytes_of(text, block);
    const int64_t length = std::ssize(sample.tokens), first = static_cast<int64_t>(i) * block;
    for (int64_t t = 0; t < block; ++t) {
      samples.set(first + t, static_cast<double>(t < length ? sample.tokens[static_cast<size_t>(t)] : padding));
    }
    lengths.push_back(length);
    cut += sample.is_cut ? 1 : 0;
    shorter += length < block ? 1 : 0;
  }
  arrays.arrays[tokens.name] = samples;
  if (tokenizer) remember_tokenizer(*tokenizer, options, &arrays);
  bool has_mask = false;
  for (const InputSpec& spec : inputs) {
    if (!is_filled(spec)) continue;
    Tensor filled = filled_input(spec, shape);
    arrays.arrays[spec.name] = filled;
    if (!is_mask(spec)) continue;
    has_mask = true;
    for (int64_t i = 0; i < shape[0]; ++i) {
      for (int64_t t = lengths[static_cast<size_t>(i)]; t < block; ++t) filled.set(i * block + t, 0);
    }
  }
  KnownColumns columns = trained_columns(arrays.metadata);
  columns[tokens.name] = {table.columns[*column]};
  arrays.metadata[kTableInputs] = columns_to_json(columns);
  const std::string kind =
      tokenizer ? concat(" texts as tokens of ", tokenizer->path()) : " texts, whose bytes are tokens";
  arrays.summary = concat(table.path, ": ", rows.size(), kind, ", ", block, " each",
                          cut > 0 ? concat("; ", cut, cut == 1 ? " is longer, and cut" : " are longer, and cut") : "");
  if (shorter > 0 && !has_mask) {
    arrays.notes.push_back(concat(shorter, " texts are shorter than ", block, " tokens, and filled with ", padding,
                                  ", which the model has no mask for"));
  }
  return arrays;
}

}  // namespace onnx_train
