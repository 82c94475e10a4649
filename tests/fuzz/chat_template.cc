#include "runtime/data/chats/template_program.h"

#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void chat_template(Input input) {
  using chats::Value;
  try_to([&] {
    const chats::TemplateProgram program(text_of(input));
    const Value message = Value::dict({{"role", Value::text("user")}, {"content", Value::text(" h\xC3\xA9llo\n")}});
    program.run({{"messages", Value::list({message, message})},
                 {"add_generation_prompt", Value(Value::Data(true))},
                 {"bos_token", Value::text("<s>")},
                 {"tools", Value()}});
  });
}

}  // namespace onnx_train::fuzz
