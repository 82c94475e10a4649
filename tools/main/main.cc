#include "tools/command.h"

int main(int argc, char** argv) { return onnx_train::command(argc, argv); }
