#include "tools/converse.h"

#include <cstdio>
#include <iostream>

#include "onnx_passes/ir/error.h"
#include "platform/terminal.h"
#include "tools/interrupt.h"
#include "tools/report/output.h"

namespace onnx_train {
namespace {

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void say_notes(std::vector<std::string>* notes) {
  print_notes(*notes);
  notes->clear();
}

}  // namespace

bool converse(Chat* chat, std::vector<std::string>* notes) {
  const std::atomic<bool>& is_stopped = catch_ctrl_c();
  const bool is_asked = platform::is_terminal(platform::kStandardInput) && is_terminal();
  bool all_answered = true;
  say_notes(notes);
  for (std::string line;;) {
    if (is_asked) show("> ");
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    forget_interrupt();
    try {
      chat->answer(line, [&](const std::string& more) {
        show(more);
        return !is_stopped;
      });
      show("\n");
    } catch (const Error& error) {
      print_error(concat("onnx-train: ", error.what()));
      all_answered = false;
    }
    forget_interrupt();
    say_notes(notes);
  }
  if (is_asked) show("\n");
  return all_answered;
}

}  // namespace onnx_train
