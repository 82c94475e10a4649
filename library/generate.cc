// Texts of language models, in the C interface.
#include "runtime/generation/generate.h"

#include "library/guard.h"
#include "library/handles.h"

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_generate(onnx_train_session* session, const int64_t* const* prompts, const size_t* lengths,
                                      size_t num_texts, const onnx_train_option* options, size_t count,
                                      onnx_train_on_token on_token, void* user) {
  return in_session(session, [&](onnx_train_session& s) {
    GenerationOptions given;
    read_options(options, count, generation_options(&given));
    required(on_token, "what gets the tokens");
    std::vector<std::vector<int64_t>> texts;
    if (num_texts > 0) {
      required(prompts, "the list of prompts");
      required(lengths, "the list of lengths");
    }
    for (size_t i = 0; i < num_texts; ++i) {
      if (lengths[i] > 0) required(prompts[i], "a prompt");
      texts.emplace_back(prompts[i], prompts[i] + lengths[i]);
    }
    GenerationReport report;
    const auto told = [&](size_t text, int64_t token) {
      const onnx_train_next next = on_token(user, text, token);
      return next == ONNX_TRAIN_CONTINUE   ? AfterToken::kGoOn
             : next == ONNX_TRAIN_END_TEXT ? AfterToken::kEndText
                                           : AfterToken::kEndAll;
    };
    generate(&s.session, texts, given, told, &report);
    s.generate_note = note_of(report);
  });
}

const char* onnx_train_generate_note(const onnx_train_session* session) {
  return session ? session->generate_note.c_str() : "";
}
}
