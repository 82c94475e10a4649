# What is installed of the command: the program, its man pages, its completions for bash, zsh and fish. The program writes the
# texts itself when it is installed.
install(TARGETS onnx-train RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT command)
if(CMAKE_CROSSCOMPILING)  # it does not run here
  return()
endif()
install(CODE "
  set(command \"$<TARGET_FILE:onnx-train>\")
  set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/scripts/man_pages\" \"\${command}\" \"\${prefix}/${CMAKE_INSTALL_MANDIR}/man1\"
    COMMAND_ERROR_IS_FATAL ANY)
  foreach(file IN ITEMS bash-completion/completions/onnx-train zsh/site-functions/_onnx-train fish/vendor_completions.d/onnx-train.fish)
    string(REGEX MATCH \"^[a-z]+\" shell \"\${file}\")
    execute_process(COMMAND \"\${command}\" completion \"\${shell}\" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE \"\${prefix}/${CMAKE_INSTALL_DATADIR}/\${file}\" \"\${text}\")
  endforeach()" COMPONENT command)
