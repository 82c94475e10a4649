#include "runtime/generation/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_passes/import/import.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/model.h"
#include "tests/support/error_of.h"
#include "tests/support/small_decoder.h"

namespace onnx_train::generate_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kDraws = 10000;

std::vector<int64_t> counts_of(const std::vector<double>& logits, const SamplingOptions& options) {
  SplitMix64 random(3);
  std::vector<int64_t> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(draw_token(logits, options, &random))];
  return counts;
}

TEST(TokenSampler, DrawsByTheSoftmax) {
  const std::vector<double> logits = {std::log(1), std::log(6), std::log(3)};
  constexpr double kFourDeviations = 200;
  const auto counts = counts_of(logits, {});
  EXPECT_NEAR(static_cast<double>(counts[0]), 1000, kFourDeviations);
  EXPECT_NEAR(static_cast<double>(counts[1]), 6000, kFourDeviations);
  const auto sharper = counts_of(logits, {.temperature = 0.5});  // 1, 36 and 9 of 46
  EXPECT_NEAR(static_cast<double>(sharper[1]), kDraws * 36 / 46.0, kFourDeviations);
  EXPECT_THAT(counts_of(logits, {.temperature = 0}), ElementsAre(0, kDraws, 0));
}

TEST(TokenSampler, LeavesUnlikelyTokensOut) {
  const std::vector<double> logits = {std::log(1), std::log(6), std::log(3)};
  EXPECT_THAT(counts_of(logits, {.top_k = 1}), ElementsAre(0, kDraws, 0));
  EXPECT_EQ(counts_of(logits, {.top_k = 2})[0], 0);
  EXPECT_EQ(counts_of(logits, {.top_p = 0.7})[0], 0);  // 0.6 is not enough, 0.6 and 0.3 are
  EXPECT_GT(counts_of(logits, {.top_p = 0.7})[2], 0);
  EXPECT_THAT(counts_of(logits, {.top_p = 0.5}), ElementsAre(0, kDraws, 0));
  EXPECT_THAT(counts_of(logits, {.top_p = 1e-9}), ElementsAre(0, kDraws, 0));
  EXPECT_GT(counts_of(logits, {.top_k = 9})[0], 0);
}

TEST(TokenSampler, RefusesWhatIsNoDistribution) {
  SplitMix64 random(0);
  const double nan = std::nan(""), infinity = INFINITY;
  EXPECT_THAT(error_of([&] { draw_token({0, nan}, {}, &random); }), HasSubstr("the logit of token 1 is NaN"));
  EXPECT_THAT(error_of([&] { draw_token({0, infinity}, {}, &random); }), HasSubstr("not finite"));
  EXPECT_THAT(error_of([&] { draw_token({-infinity, -infinity}, {}, &random); }), HasSubstr("not finite"));
  EXPECT_EQ(draw_token({-infinity, 0}, {}, &random), 1);
}

// The next token is the sum of all that were read, modulo 7.
Session summing(const std::string& tokens) {
  return Session(from_text("<ir_version: 10, opset_import: [\"\" : 21]> sums (int64[" + tokens + R"(] tokens)
    => (float[batch, tokens, 7] logits)
    <int64 one = {1}, int64 seven = {7}, float[2] values = {0, 10}> {
      sums = CumSum(tokens, one)
      rest = Mod(sums, seven)
      logits = OneHot(rest, seven, values)
    })"));
}

TEST(Generate, EachTokenFollowsFromAllBefore) {
  Session session = summing("batch, length");
  const GenerationOptions likely{.tokens = 4, .sampling = {.temperature = 0}};
  const auto written = generate(&session, {{1, 2}, {4, 4, 5}, {0}}, likely);
  EXPECT_THAT(written, ElementsAre(ElementsAre(3, 6, 5, 3), ElementsAre(6, 5, 3, 6), ElementsAre(0, 0, 0, 0)));
  Session fixed = summing("4, 8");
  EXPECT_EQ(generate(&fixed, {{1, 2}, {4, 4, 5}, {0}}, likely), written);
}

TEST(Generate, ReadsTheLastTokensOfAContext) {
  Session session = summing("batch, length");
  const GenerationOptions two{.tokens = 3, .context = 2, .sampling = {.temperature = 0}};
  EXPECT_THAT(generate(&session, {{6, 1, 2}}, two), ElementsAre(ElementsAre(3, 5, 1)));
}

// The same with a table of five positions, whose rows are zeros.
Session summing_at_positions() {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]> sums (int64[batch, length] tokens)
    => (float[batch, length, 7] logits)
    <int64 zero = {0}, int64 one = {1}, int64 seven = {7}, float[2] values = {0, 10},
     float[5,7] places = {0,0,0,0,0,0,0, 0,0,0,0,0,0,0, 0,0,0,0,0,0,0, 0,0,0,0,0,0,0, 0,0,0,0,0,0,0}> {
      sums = CumSum(tokens, one)
      rest = Mod(sums, seven)
      hot = OneHot(rest, seven, values)
      sizes = Shape(tokens)
      count = Gather(sizes, one)
      numbers = Range(zero, count, one)
      at = Gather(places, numbers)
      logits = Add(hot, at)
    })");
  infer_types(model.graph.get());
  return Session(std::move(model));
}

TEST(Generate, ReadsNoMoreTokensThanThereArePositions) {
  Session session = summing_at_positions(), plain = summing("batch, length");
  GenerationOptions options{.tokens = 9, .sampling = {.temperature = 0}};
  const auto written = generate(&session, {{6, 1, 2}}, options);
  options.context = 5;
  EXPECT_EQ(written, generate(&plain, {{6, 1, 2}}, options));
  options.context = 6;
  EXPECT_THAT(error_of([&] { generate(&session, {{1}}, options); }), HasSubstr("'places' has 5 positions"));
}

TEST(Generate, APromptHoldsTokensOfTheModel) {
  Session session = summing("batch, length");
  EXPECT_THAT(error_of([&] { generate(&session, {{1, -2}}, {}); }), HasSubstr("the token -2; the model has 0 to 6"));
  EXPECT_THAT(error_of([&] { generate(&session, {{7}}, {}); }), HasSubstr("the token 7"));
}

Session decoder(const std::string& attention = kCausal, const std::string& sizes = "batch, length") {
  Model model = from_text(small_decoder(attention, sizes));
  infer_types(model.graph.get());
  return Session(std::move(model));
}

Texts most_likely(Session* session, bool no_cache) {
  GenerationReport report;
  const GenerationOptions options{.tokens = 12, .no_cache = no_cache, .sampling = {.temperature = 0}};
  const Texts written = generate(session, {{1, 2, 3}}, options, {}, &report);
  EXPECT_EQ(report.uncached, no_cache ? kNoCache : "");
  return written;
}

TEST(Generate, KeysMayLieInOtherOrders) {
  std::string turned = kCausal;
  const std::string two = R"(keys = Transpose <perm = [0, 2, 1, 3]> (kh)
    k = Transpose <perm = [0, 1, 3, 2]> (keys))";
  turned.replace(turned.find(two), two.size(), "k = Transpose <perm = [0, 2, 3, 1]> (kh)");
  Session session = decoder(turned);
  EXPECT_EQ(most_likely(&session, false), most_likely(&session, true));
}

TEST(Generate, ACacheGivesTheTokensThatReadingAllGives) {
  Session session = decoder();
  GenerationOptions options{.tokens = 30, .sampling = {.temperature = 0}};
  GenerationReport with, without;
  // Of different lengths, and longer in the end than there are positions.
  const Texts prompts = {{1, 2, 3}, {4}, {6, 5, 0}, {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 0, 0, 1, 1, 2, 2}};
  const Texts cached = generate(&session, prompts, options, {}, &with);
  options.no_cache = true;
  EXPECT_EQ(generate(&session, prompts, options, {}, &without), cached);
  EXPECT_EQ(with.uncached, "");
  EXPECT_EQ(with.context, 16);
  EXPECT_EQ(without.uncached, kNoCache);
  EXPECT_EQ(with.written, 4 * 29);  // the first ones follow from the prompts
  options.sampling = {.temperature = 1, .top_k = 3};
  const Texts drawn = generate(&session, prompts, options);
  options.no_cache = false;
  EXPECT_EQ(generate(&session, prompts, options), drawn);
}

TEST(Generate, AFixedNumberOfTokensIsOpened) {
  Session open = decoder();
  for (const char* sizes : {"batch, 16", "1, 16", "3, length"}) {
    Session fixed = decoder(kCausal, sizes);
    EXPECT_EQ(most_likely(&fixed, false), most_likely(&open, true)) << sizes;
    EXPECT_EQ(most_likely(&fixed, false), most_likely(&fixed, true)) << sizes;
  }
}

TEST(Generate, ACacheWithOtherLogitsIsNotUsed) {
  Session session = decoder(counting_few());
  GenerationOptions options{.tokens = 8, .sampling = {.temperature = 0}};
  GenerationReport report;
  const Texts written = generate(&session, {{1, 2, 3}, {4}}, options, {}, &report);
  EXPECT_EQ(report.uncached, "[Cache] the logits with a cache are not those without");
  options.no_cache = true;
  EXPECT_EQ(generate(&session, {{1, 2, 3}, {4}}, options), written);
}

// The small decoder with its positions and a mask as inputs; hidden scores are as `hidden` says.
Session masked_decoder(const std::string& hidden) {
  std::string text = small_decoder(kCausal);
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
  replace("int64[batch, length] tokens)",
          "int64[batch, length] tokens, int64[batch, length] attention_mask, int64[batch, length] position_ids)");
  replace("positions = Slice(places, first, count, first)", "positions = Gather(places, position_ids)");
  replace("weights = Softmax <axis = -1> (masked)", R"(middle = Constant <value_ints = [1, 2]> ()
    row = Unsqueeze(attention_mask, middle)
    is_read = Cast <to = 9> (row)
    nothing = Constant <value = float {)" + hidden + R"(}> ()
    read_scores = Where(is_read, masked, nothing)
    weights = Softmax <axis = -1> (read_scores))");
  Model model = from_text(text);
  infer_types(model.graph.get());
  return Session(std::move(model));
}

TEST(Generate, PromptsOfDifferentLengthsGiveWhatEachGivesAlone) {
  const Texts prompts = {{1, 2, 3}, {4}, {6, 5, 0, 1, 2, 2}, {3, 3}};
  for (const char* hidden : {"-1e9", "-inf"}) {
    Session session = masked_decoder(hidden);
    for (const int64_t tokens : {1, 9, 14}) {  // the last ones are longer than the context in the end
      const GenerationOptions options{.tokens = tokens, .sampling = {.temperature = 0}};
      GenerationReport report;
      const Texts together = generate(&session, prompts, options, {}, &report);
      EXPECT_EQ(report.uncached, "") << hidden;
      if (hidden == std::string("-1e9")) {
        EXPECT_EQ(report.runs, tokens);  // side by side
      }
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(together[i], generate(&session, {prompts[i]}, options)[0]) << hidden << i;
        GenerationOptions plain = options;
        plain.no_cache = true;
        EXPECT_EQ(together[i], generate(&session, {prompts[i]}, plain)[0]) << hidden << i;
      }
    }
  }
}

TEST(Generate, ATextWriterReadsOnlyWhatTheTextBeforeHasNot) {
  Session session = decoder();
  const GenerationOptions options{.tokens = 4, .sampling = {.temperature = 0}};
  TextWriter writer(&session, 1, options);
  std::vector<int64_t> text = {1, 2, 3};
  const auto write = [&](const std::vector<int64_t>& prompt, int64_t read) {
    const int64_t before = writer.report().read;
    const Texts written = writer.write({prompt}, 4, {});
    EXPECT_EQ(written, generate(&session, {prompt}, options));
    EXPECT_EQ(writer.report().read - before, read);
    return written[0];
  };
  const std::vector<int64_t> first = write(text, 3);
  text.insert(text.end(), first.begin(), first.end());
  text.insert(text.end(), {5, 6, 0, 1});
  write(text, 5);  // the last token of the first text was drawn, and not read
  write({1, 2, 6, 6}, 2);
  write({1, 2, 6, 6}, 1);
  write({4, 4}, 2);
  std::vector<int64_t> full(16, 2);
  write(full, 16);  // as many as there are positions
  full.back() = 3;
  write(full, 1);
  full.push_back(3);
  write(full, 16);
  EXPECT_EQ(writer.report().uncached, "");
}

TEST(Generate, ATextCompletesWhileOthersGoOn) {
  Session session = summing("batch, length");
  const GenerationOptions options{.tokens = 4, .ends = {6, 0}, .sampling = {.temperature = 0}};
  EXPECT_THAT(generate(&session, {{1, 2}, {0}, {4, 4, 5}}, options),
              ElementsAre(ElementsAre(3, 6), ElementsAre(0), ElementsAre(6)));
  const auto second = [](size_t text, int64_t) { return text == 1 ? AfterToken::kEndText : AfterToken::kGoOn; };
  EXPECT_THAT(generate(&session, {{1, 2}, {4, 4, 5}}, {.tokens = 3, .sampling = {.temperature = 0}}, second),
              ElementsAre(ElementsAre(3, 6, 5), ElementsAre(6)));
}

TEST(Generate, SaysWhichNodeHasNoCache) {
  Session session = summing("batch, length");
  GenerationReport report;
  generate(&session, {{1, 2}}, {.tokens = 2}, {}, &report);
  EXPECT_THAT(report.uncached, HasSubstr("(CumSum) mixes tokens"));
}

TEST(Generate, StopsAfterASequence) {
  Session session = summing("batch, length");
  GenerationOptions options{.tokens = 9, .stop = {"9", "6,5"}, .sampling = {.temperature = 0}};
  EXPECT_THAT(generate(&session, {{1, 2}, {4, 4, 5}}, options), ElementsAre(ElementsAre(3, 6, 5), ElementsAre(6, 5)));
  options.stop = {"6,,5"};
  EXPECT_THAT(error_of([&] { generate(&session, {{1}}, options); }), HasSubstr("separated by commas, not '6,,5'"));
}

TEST(Generate, EndsWithATokenOrByTheCaller) {
  Session session = summing("batch, length");
  GenerationOptions options{.tokens = 9, .end = 5, .sampling = {.temperature = 0}};
  EXPECT_THAT(generate(&session, {{1, 2}, {0}}, options)[0], ElementsAre(3, 6, 5));
  int calls = 0;
  EXPECT_THAT(generate(&session, {{1, 2}}, options,
                       [&](size_t, int64_t) { return ++calls < 2 ? AfterToken::kGoOn : AfterToken::kEndAll; }),
              ElementsAre(ElementsAre(3, 6)));
}

TEST(Generate, ASeedGivesTheSameTextsWhateverIsBesideThem) {
  Session session(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    flat (int64[batch, length] tokens) => (float[batch, length, 50] logits)
    <float[1] zero = {0}, int64[3] shape = {1, 1, 50}> {
      floats = Cast <to = 1> (tokens)
      nothing = Mul(floats, zero)
      last = Constant <value_ints = [2]> ()
      column = Unsqueeze(nothing, last)
      logits = Expand(column, shape)
    })"));
  const GenerationOptions options{.tokens = 20, .seed = 7};
  const auto one = generate(&session, {{1}}, options), two = generate(&session, {{1}, {1}}, options);
  EXPECT_EQ(one[0], two[0]);
  EXPECT_NE(two[0], two[1]);
  EXPECT_NE(generate(&session, {{1}}, {.tokens = 20, .seed = 8}), one);
}

TEST(Generate, RefusesOtherModels) {
  Session sums = summing("batch, length"), one = summing("1, 8");
  EXPECT_THAT(error_of([&] { generate(&sums, {{}}, {}); }), HasSubstr("at least one token"));
  EXPECT_THAT(error_of([&] { generate(&one, {{1}, {2}}, {}); }), HasSubstr("takes 1 texts at a time"));
  EXPECT_THAT(error_of([&] { generate(&one, {{1}}, {.context = 9}); }), HasSubstr("'tokens' takes 8 tokens"));
  EXPECT_EQ(vocabulary_of(sums), 7);

  const auto error_for = [](const std::string& text) {
    Session session(from_text("<ir_version: 10, opset_import: [\"\" : 21]> other " + text));
    return error_of([&] { generate(&session, {{1}}, {.tokens = 1}); });
  };
  EXPECT_THAT(error_for("(float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), HasSubstr("takes x float[n,4]"));
  EXPECT_THAT(error_for("(int64[n, t] ids, float[n, 2, p, 8] past) => (float[n, t] y) { y = Cast <to = 1> (ids) }"),
              HasSubstr("also takes 'past' float[n,2,p,8]"));
  EXPECT_THAT(error_for("(int64[n, t] ids) => (float[n, t] y) { y = Cast <to = 1> (ids) }"),
              HasSubstr("no output float[batch, tokens, vocabulary]"));
  // Logits of the mean over all tokens.
  EXPECT_THAT(error_for(R"((int64[n, t] ids) => (float[n, t, 2] y)
    <float[2] up = {1, 2}, int64[1] last = {2}, int64[1] time = {1}> {
      floats = Cast <to = 1> (ids)
      mean = ReduceMean(floats, time)
      zeros = Sub(floats, floats)
      all = Add(zeros, mean)
      column = Unsqueeze(all, last)
      y = Mul(column, up)
    })"),
              HasSubstr("not causal"));
}

}  // namespace
}  // namespace onnx_train::generate_test
