#include "runtime/generation/next_logits.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/training/strip_training.h"
#include "runtime/data/files/tokens.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// TextWindows are longer than texts, so logits must not depend on the positions after a text.
void check_is_causal(const Logits& one, const Logits& other) {
  if (relative_difference(one, other) > kRoundingOfLogits)
    fail("the logits of a token change with the tokens after it: the model is not causal, and writes no text");
}

// The model of an export with a cache of its own, without it; null for any other model.
std::unique_ptr<Session> without_own_cache(const Session& session) {
  if (!has_cache(*session.model().graph)) return nullptr;
  Model model = strip_training(session.snapshot());
  infer_types(model.graph.get());
  if (!drop_cache(&model)) return nullptr;
  return std::make_unique<Session>(std::move(model), session.options());
}

// Whether masks and positions are inputs, so that texts of different lengths can be read side by side.
bool takes_filled_texts(const Session& session) {
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), Entry::kPredict);
  const auto is_positions_of_each = [](const InputSpec& spec) {
    return is_position(spec) && !spec.type.dims->front().same(Dim(int64_t{1}));
  };
  return std::ranges::any_of(inputs, is_mask) && std::ranges::any_of(inputs, is_positions_of_each);
}

}  // namespace

NextLogits::NextLogits(Session* session, int64_t texts, int64_t context, int64_t usual, bool no_cache)
    : plain_(without_own_cache(*session)),
      session_(plain_ ? *plain_ : *session),
      windows_(session_, texts, context, usual),
      fills_(takes_filled_texts(session_)) {
  if (no_cache) {
    report_.uncached = kNoCache;
    return;
  }
  try {
    cached_ = std::make_unique<CachedModel>(session_);
  } catch (const Error& error) {
    report_.uncached = error.what();
  }
}

void NextLogits::begin(const Texts& prompts) {
  spare_.clear();
  for (Group& group : groups_) {
    if (group.reader) spare_.push_back(std::move(group.reader));
  }
  form_groups(prompts);
  is_prompt_ = true;
}

// All texts in one group, or those of one length.
void NextLogits::form_groups(const Texts& prompts) {
  std::map<int64_t, std::vector<size_t>> by_length;
  for (size_t i = 0; i < prompts.size(); ++i) by_length[fills_ ? 0 : std::ssize(prompts[i])].push_back(i);
  groups_.clear();
  for (auto& [key, texts] : by_length) {
    Group& group = groups_.emplace_back();
    for (const size_t i : texts) group.length = std::max(group.length, std::ssize(prompts[i]));
    for (const size_t i : texts) group.filled.push_back(group.length - std::ssize(prompts[i]));
    group.texts = std::move(texts);
  }
}

Logits NextLogits::operator()(const Texts& texts, const std::vector<bool>& is_complete) {
  if (cached_) {
    Logits logits = with_cache(texts, is_complete);
    if (cached_) return logits;
  }
  return without_cache(texts, is_complete);
}

Logits NextLogits::without_cache(const Texts& texts, const std::vector<bool>& is_complete) {
  std::vector<int64_t> places;
  for (const auto& text : texts) places.push_back(windows_.last_of(text));
  const auto read = [&](int64_t padding) {
    return logits_at(session_.run(Entry::kPredict, windows_.of(texts, padding)), places);
  };
  const Clock::time_point start = Clock::now();
  Logits logits = read(0);
  int64_t tokens = 0;
  for (size_t i = 0; i < texts.size(); ++i) tokens += is_complete[i] ? 0 : is_prompt_ ? std::ssize(texts[i]) : 1;
  count(is_prompt_, tokens, seconds_since(start));
  is_prompt_ = false;
  // Any other token; a vocabulary of one has none.
  if (!is_checked_) check_is_causal(logits, read(std::ssize(logits[0]) > 1 ? 1 : 0));
  is_checked_ = true;
  return logits;
}

// Without a result, and without a cache from then on, if the cache gives other logits.
Logits NextLogits::with_cache(const Texts& texts, const std::vector<bool>& is_complete) {
  Logits logits(texts.size());
  for (Group& group : groups_) {
    if (std::ranges::all_of(group.texts, [&](size_t i) { return is_complete[i]; })) continue;
    if (!group.reader) group.reader = reader_of(group);
    const Texts read = side_by_side(texts, group);
    try {
      const Clock::time_point start = Clock::now();
      const double planned = group.reader->planning();
      const Logits next = group.reader->next(read);
      const double seconds = seconds_since(start) - (group.reader->planning() - planned);
      if (group.is_prompt && !reads_filled_texts(texts, group, next)) {
        fills_ = false;
        form_groups(texts);
        return with_cache(texts, is_complete);
      }
      int64_t tokens = 0;
      for (const size_t i : group.texts)
        tokens += group.is_prompt ? std::min(group.reader->read(), std::ssize(texts[i])) : 1;
      count(group.is_prompt, tokens, seconds);
      for (size_t i = 0; i < group.texts.size(); ++i) logits[group.texts[i]] = next[i];
      check(group, read);
    } catch (const Error& error) {
      if (is_checked_) throw;
      give_up(error.what());
      break;
    }
    group.is_prompt = false;
    if (++group.length > windows_.context() + 1) report_.context = windows_.context();
  }
  spare_.clear();
  return logits;
}

// The texts of a group, filled up at their beginnings. Those that are complete go on with any token. A model of a fixed
// number of texts reads the last one several times.
Texts NextLogits::side_by_side(const Texts& texts, const Group& group) const {
  Texts read;
  for (size_t i = 0; i < group.texts.size(); ++i) {
    const std::vector<int64_t>& text = texts[group.texts[i]];
    std::vector<int64_t>& filled = read.emplace_back(static_cast<size_t>(group.filled[i]));
    filled.insert(filled.end(), text.begin(), text.end());
    filled.resize(static_cast<size_t>(group.length));
  }
  if (windows_.has_fixed_rows()) read.resize(static_cast<size_t>(windows_.rows()), read.back());
  return read;
}

// One of the texts before, which may begin alike, or a new one.
std::unique_ptr<CachedReader> NextLogits::reader_of(const Group& group) {
  std::vector<int64_t> filled = group.filled;
  if (windows_.has_fixed_rows()) filled.resize(static_cast<size_t>(windows_.rows()), filled.back());
  const auto found = std::ranges::find_if(spare_, [&](const auto& reader) { return reader->filled() == filled; });
  std::unique_ptr<CachedReader> reader;
  if (found != spare_.end()) {
    reader = std::move(*found);
    spare_.erase(found);
  }
  if (!reader) reader = std::make_unique<CachedReader>(*cached_, windows_.context(), std::move(filled));
  return reader;
}

// Whether the logits of the text that is filled up most are those of this text alone: asked once. Rows of scores that
// are hidden altogether may be no numbers, and spoil what comes after them.
bool NextLogits::reads_filled_texts(const Texts& texts, const Group& group, const Logits& logits) {
  const auto most = std::ranges::max_element(group.filled) - group.filled.begin();
  const int64_t filled = group.filled[static_cast<size_t>(most)];
  if (filled == 0 || has_tried_filled_) return true;
  has_tried_filled_ = true;
  const size_t text = group.texts[static_cast<size_t>(most)];
  const Group alone{.texts = {text}, .filled = {0}, .length = std::ssize(texts[text])};
  const Texts read = side_by_side(texts, alone);
  CachedReader reader(*cached_, windows_.context(), std::vector<int64_t>(read.size()));
  return relative_difference({reader.next(read)[0]}, {logits[static_cast<size_t>(most)]}) <= kRoundingOfLogits;
}

// Once, when there are two tokens.
void NextLogits::check(const Group& group, const Texts& read) {
  if (is_checked_ || group.length < 2) return;
  if (!group.reader->agrees(read)) fail("[Cache] the logits with a cache are not those without");
  is_checked_ = true;
}

void NextLogits::give_up(const std::string& why) {
  report_ = {.uncached = why};
  groups_.clear();
  spare_.clear();
  cached_ = nullptr;
}

void NextLogits::count(bool is_prompt, int64_t tokens, double seconds) {
  ++report_.runs;
  (is_prompt ? report_.reading : report_.writing) += seconds;
  (is_prompt ? report_.read : report_.written) += tokens;
}

}  // namespace onnx_train
