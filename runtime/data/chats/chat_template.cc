#include "runtime/data/chats/chat_template.h"

#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "kernels/choices/cache.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::chats {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::optional<std::string> text_at(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const auto file = MappedFile::open(path.string());
  return std::string(reinterpret_cast<const char*>(file->data()), file->size());
}

// A template, or the one called "default" of a list.
std::optional<std::string> template_in(const Json& config) {
  const Json given = config.value("chat_template", Json());
  if (given.is_string()) return given.get<std::string>();
  if (!given.is_array()) return std::nullopt;
  for (const Json& one : given) {
    if (one.is_object() && one.value("name", Json()) == "default" && one.value("template", Json()).is_string())
      return one.at("template").get<std::string>();
  }
  return std::nullopt;
}

Dict special_tokens(const Json& config) {
  Dict tokens;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
    Json token = config.value(name, Json());
    if (token.is_object()) token = token.value("content", Json());
    if (token.is_string()) tokens.emplace_back(name, Value::text(token.get<std::string>()));
  }
  return tokens;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& tokenizer) {
  const fs::path folder = fs::path(tokenizer).parent_path(), beside = folder / "chat_template.jinja",
                 kept = folder / "tokenizer_config.json";
  Json config = Json::object();
  const auto text_of_config = text_at(kept);
  if (text_of_config) config = Json::parse(*text_of_config, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) fail_as(ErrorCode::kFile, kept.string(), " is no JSON object");
  special_ = special_tokens(config);
  auto source = text_at(beside);
  path_ = (source ? beside : kept).string();
  if (!source) source = template_in(config);
  if (!source) {
    fail_as(ErrorCode::kFile, "the folder of ", tokenizer, " says not how conversations are written: it has neither ",
            "chat_template.jinja nor \"chat_template\" in tokenizer_config.json");
  }
  const bool reads_clock = source->find("strftime_now") != std::string::npos;
  if (!reads_clock) identity_ = hash_of(*source + text_of_config.value_or(""));
  try {
    program_ = std::make_unique<TemplateProgram>(*source);
  } catch (const Error& error) {
    fail_as(ErrorCode::kFile, "cannot read the chat template in ", path_, ": ", error.what());
  }
}

Written ChatTemplate::write(const std::vector<Message>& messages, bool introduces) const {
  List list;
  for (const Message& message : messages)
    list.push_back(Value::dict({{"role", Value::text(message.role)}, {"content", Value::text(message.content)}}));
  Dict variables = special_;
  variables.emplace_back("messages", Value::list(list));
  variables.emplace_back("add_generation_prompt", Value(Value::Data(introduces)));
  for (const char* name : {"tools", "documents"}) variables.emplace_back(name, Value());
  try {
    return program_->run(variables);
  } catch (const Error& error) {
    fail_as(ErrorCode::kData, "the chat template in ", path_, " refuses it: ", error.what());
  }
}

}  // namespace onnx_train::chats
