#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/data/chats/conversations.h"
#include "runtime/data/chats/template_program.h"
#include "runtime/data/loading/source.h"
#include "tests/support/error_of.h"

namespace onnx_train::chats_test {
namespace {

using chats::Dict;
using chats::TemplateProgram;
using chats::Value;
using testing::ElementsAre;
using testing::HasSubstr;

std::string write(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "chats/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

const Dict kVariables = {
    {"messages", Value::list({Value::dict({{"role", Value::text("user")}, {"content", Value::text("Hi")}}),
                              Value::dict({{"role", Value::text("assistant")}, {"content", Value::text("Yo")}})})},
    {"bos_token", Value::text("<s>")}};

std::string written(const std::string& source) { return TemplateProgram(source).run(kVariables).text; }
std::string error(const std::string& source) {
  return error_of([&] { written(source); });
}

TEST(ChatTemplate, BlocksTakeTheLineTheyStandOnAndTheNewlineAfterIt) {
  EXPECT_EQ(written("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(written("a \n {%- if true -%} \n b {%- endif %} c"), "ab c");
  EXPECT_EQ(written("  {%+ if true %}x{% endif +%}\n{# no\n#}\n  {{ 1 }}\n"), "  x\n  1");
}

TEST(ChatTemplate, LoopsNamespacesAndMacrosAreThoseOfJinja) {
  EXPECT_EQ(
      written(
          "{{ bos_token }}{% for m in messages %}{{ loop.index0 ~ m.role[0] }}{{ ', ' if not loop.last }}{% endfor %}"),
      "<s>0u, 1a");
  EXPECT_EQ(
      written("{% set n = namespace(x=1) %}{% set x = 1 %}{% for i in range(3) %}{% set n.x = n.x + i %}{% set x = i %}"
              "{% endfor %}{{ n.x }}{{ x }}"),
      "41");
  EXPECT_EQ(written("{% macro f(a, b='?') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(2, b='!') }}"), "1?2!");
  EXPECT_EQ(written("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('-') }}"),
            "Hi");
  EXPECT_EQ(written("{{ {'a': [1, none, 'é\"']} | tojson }}"), R"({"a": [1, null, "é\""]})");
  const auto marked =
      TemplateProgram("{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}");
  EXPECT_TRUE(marked.marks_generation());
  EXPECT_THAT(marked.run(kVariables).generated,
              ElementsAre(std::pair<size_t, size_t>{1, 3}, std::pair<size_t, size_t>{5, 7}));
}

TEST(ChatTemplate, WhatIsNotKnownIsNamedWithItsLine) {
  EXPECT_EQ(error("a\n{{ 'x' | rot13 }}"), "line 2: the filter 'rot13' is not known here");
  EXPECT_EQ(error("{{ 1 is prime }}"), "line 1: the test 'prime' is not known here");
  EXPECT_EQ(error("a\n{{ '\x83' | tojson }}"), "line 2: byte 6 of the template is no UTF-8");
  EXPECT_EQ(error("{{ cycler(1) }}"), "line 1: cycler is no function that is known here");
  EXPECT_EQ(error("{% include 'x' %}"), "line 1: {% include %} is not known here, or stands in no place for it");
  EXPECT_EQ(error("{% if true %}a"), "line 1: {% endif %} is missing");
  EXPECT_EQ(error("\n{{ nothing.role }}"), "line 2: 'nothing' is undefined, and has no 'role'");
  EXPECT_EQ(error("{{ raise_exception('roles must alternate') }}"), "line 1: roles must alternate");
  EXPECT_THAT(error("{{ 1 // 0 }}"), HasSubstr("division by 0"));
  EXPECT_THAT(error("{{ range(2000000) }}"), HasSubstr("more than 1048576 numbers"));
  EXPECT_THAT(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("'f' calls itself more than 16 times"));
  EXPECT_THAT(error("{% for a in range(9999) %}{% for b in range(9999) %}{% set c = 1 %}{% endfor %}{% endfor %}"),
              HasSubstr("the template runs more than 1048576 statements"));
  EXPECT_THAT(error("{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}"), HasSubstr("writes more than"));
  EXPECT_THAT(error(std::string(5000, '(')), "");  // text
  EXPECT_THAT(error("{{ " + std::string(5000, '(') + std::string(5000, ')') + " }}"), HasSubstr("deeper than 50"));
  EXPECT_EQ(error("{{ " + std::string(5000, '-') + "1 }}"), "");
  const auto repeated = [](const std::string& part) {
    std::string text;
    for (int i = 0; i < 5000; ++i) text += part;
    return text;
  };
  EXPECT_THAT(error("{{ 1" + repeated("+1") + " }}"), HasSubstr("more than 300 operators"));
  EXPECT_THAT(error("{{ messages" + repeated(".x") + " }}"), HasSubstr("more than 300 operators"));
  EXPECT_THAT(error(repeated("{% if 1 %}")), HasSubstr("deeper than 40"));
  EXPECT_THAT(error("{% if 0 %}" + repeated("{% elif 0 %}") + "{% endif %}"), HasSubstr("deeper than 40"));
}

// Each beginning of a template, and the template with each byte changed, is run or refused.
TEST(ChatTemplate, DamagedTemplatesAreRefused) {
  const std::string source =
      "{%- macro f(a, b=[1, {'k': 2.5}]) -%}{{ a[0:1] ~ b[-1]['k'] }}{%- endmacro %}\n{# c #}\n"
      "{% for m in messages if m.role != 'x' %}{% set y %}{{ f(m.content | trim) }}{% endset %}{{ y }}"
      "{% if loop.first and (1 + 2 * 3) % 2 == 1 %}{{ m | tojson(indent=2) }}{% elif m is defined %}b{% else %}c{% "
      "endif %}{% endfor %}";
  int refused = 0;
  for (size_t size = 0; size < source.size(); ++size) {
    refused += error(source.substr(0, size)).empty() ? 0 : 1;
    std::string flipped = source;
    flipped[size] = static_cast<char>(flipped[size] ^ (1 << size % 7));
    error(flipped);
  }
  EXPECT_GT(refused, 100);
}

// Letters are tokens; <s> and <e> are special.
std::string tokenizer() {
  std::string vocab;
  for (char c = ' '; c <= '~'; ++c)
    vocab +=
        std::string(c == ' ' ? "" : ",") + "\"" + (c == '"' || c == '\\' ? "\\" : "") + c + "\":" + std::to_string(c);
  return R"({"version": "1.0", "added_tokens": [
    {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 2, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "model": {"type": "BPE", "merges": [], "vocab": {"<s>": 1, "<e>": 2, )" +
         vocab + "}}}";
}

constexpr const char* kTemplate =
    "{% for m in messages %}{{ '<s>' + m.role[0] + m.content + '<e>' }}{% endfor %}{% if add_generation_prompt "
    "%}<s>a{% endif %}";

const std::vector<InputSpec> kInputs = {{"tokens", {DType::kInt64, Dims{"batch", 9}}},
                                        {"attention_mask", {DType::kInt64, Dims{"batch", 9}}},
                                        {"labels", {DType::kInt64, Dims{"batch", 9}}, /*from_loss=*/true}};

std::vector<int64_t> row(const DataArrays& data, const std::string& name, int64_t i) {
  const Tensor rows = data.find(name)->read_all();
  std::vector<int64_t> row;
  for (int64_t t = 0; t < rows.shape()[1]; ++t) row.push_back(static_cast<int64_t>(rows.at(i * rows.shape()[1] + t)));
  return row;
}

DataArrays open(const std::string& lines, const std::string& chat_template,
                const std::vector<InputSpec>& inputs = kInputs, std::optional<int64_t> ignored = -100) {
  ReadOptions options;
  options.tokenizer = write("model/tokenizer.json", tokenizer());
  options.ignored_label = ignored;
  write("model/chat_template.jinja", chat_template);
  return open_data(write("chats.jsonl", lines), inputs, options);
}

TEST(Conversations, AnswersAloneAreLearned) {
  const std::string forms[] = {
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "y"}]}]})",
      R"({"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]})",
      R"({"prompt": "x", "completion": "y"})", R"({"instruction": "x", "input": "", "output": "y"})"};
  const std::string marked =
      "{% for m in messages %}{{ '<s>' + m.role[0] }}{% if m.role == 'assistant' %}{% generation %}{{ m.content "
      "}}<e>{% endgeneration %}"
      "{% else %}{{ m.content }}<e>{% endif %}{% endfor %}";
  for (const std::string& chat_template : {std::string(kTemplate), marked}) {
    for (const std::string& form : forms) {
      const DataArrays data = open(form, chat_template);
      EXPECT_THAT(row(data, "tokens", 0), ElementsAre(1, 'u', 'x', 2, 1, 'a', 'y', 0, 0)) << form;
      EXPECT_THAT(row(data, "labels", 0), ElementsAre(-100, -100, -100, -100, -100, 'y', 2, -100, -100));
      EXPECT_THAT(row(data, "attention_mask", 0), ElementsAre(1, 1, 1, 1, 1, 1, 1, 0, 0));
      EXPECT_THAT(data.summary, HasSubstr("1 conversations of 9 tokens"));
      EXPECT_THAT(data.summary, HasSubstr("2 tokens of answers are learned"));
    }
  }
}

TEST(Conversations, LongOnesAreCutAndThoseWithoutAnAnswerLeftOut) {
  const DataArrays data = open(
      "{\"prompt\": \"x\", \"completion\": \"abcdef\"}\n\n{\"prompt\": \"a long question\", \"completion\": \"b\"}\n",
      kTemplate);
  EXPECT_THAT(row(data, "labels", 0), ElementsAre(-100, -100, -100, -100, -100, 'a', 'b', 'c', 'd'));
  EXPECT_THAT(data.summary, HasSubstr("1 are longer, and cut; 1 without an answer in them are left out"));
}

TEST(Conversations, WhatCannotBeWrittenIsNamedWithItsLine) {
  const std::string good = "{\"prompt\": \"x\", \"completion\": \"y\"}\n";
  const auto error = [&](const std::string& lines, const std::string& chat_template = kTemplate) {
    return error_of([&] { open(lines, chat_template); });
  };
  EXPECT_THAT(error(good + "{\"messages\": [{\"role\": 1}]}\n"),
              HasSubstr("chats.jsonl, line 2 is no JSON object with \"messages\""));
  EXPECT_THAT(error(good + "{\n"), HasSubstr("chats.jsonl, line 2"));
  EXPECT_THAT(error(good, "{{ raise_exception('no') }}"), HasSubstr("chats.jsonl, line 1: the chat template in "));
  EXPECT_THAT(error(good, "{{ messages | rot13 }}"), HasSubstr("'rot13' is not known"));
  EXPECT_THAT(error(good, "{% for"), HasSubstr("cannot read the chat template in "));
  EXPECT_THAT(error(good, "{{ messages | length }}"), HasSubstr("writes what came before an answer in another way"));
  EXPECT_THAT(error("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n"),
              HasSubstr("no conversation has an answer"));
  EXPECT_THAT(error_of([&] { open(good, kTemplate, kInputs, std::nullopt); }), HasSubstr("build it with ignore_index"));
  std::filesystem::remove(testing::TempDir() + "chats/model/chat_template.jinja");
  ReadOptions options;
  options.tokenizer = testing::TempDir() + "chats/model";
  options.ignored_label = -100;
  EXPECT_THAT(error_of([&] { open_data(write("chats.jsonl", good), kInputs, options); }),
              HasSubstr("says not how conversations are written"));
}

}  // namespace
}  // namespace onnx_train::chats_test
