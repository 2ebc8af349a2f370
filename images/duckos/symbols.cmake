# Writes OUTPUT, an assembler file with the names of all functions in ELF, for back-traces:
#   cmake -DNM=nm -DELF=duckos_plain.elf -DOUTPUT=symbols.S -P symbols.cmake
# Entries in rising order: offset from image_start in four bytes, then the name with its zero.
execute_process(COMMAND ${NM} --numeric-sort ${ELF} OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[0-9a-f]+ [tT] [A-Za-z_][A-Za-z0-9_]*" functions "${listing}")
set(text "        .section .symbols, \"a\"\n        .globl symbols, symbols_end\nsymbols:\n")
foreach(function IN LISTS functions)
  string(REGEX REPLACE "^ffffffff8(.......) . (.*)$" "        .long 0x\\1\n        .asciz \"\\2\"\n" entry "${function}")
  string(APPEND text "${entry}")
endforeach()
file(WRITE ${OUTPUT} "${text}symbols_end:\n")
