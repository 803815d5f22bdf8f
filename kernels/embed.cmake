# Writes kernel sources as C: cmake -DOUT=FILE.c "-DFILES=A.cu;B.cu" -P embed.cmake
# Writes arrays of bytes: C guarantees only 4095 characters per string literal, and bytes need no escaping.
set(arrays "")
set(rows "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER ${name} array)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "static const unsigned char ${array}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", (const char *)${array}, sizeof ${array} - 1},\n")
endforeach()
file(WRITE ${OUT}
"// Written by kernels/embed.cmake from kernels/*.h, kernels/cuda and the objects of kernels/cpu.
#include \"compiler/kernel_source.h\"
extern const mlx_kernel_source_t mlx_kernel_sources[];
${arrays}const mlx_kernel_source_t mlx_kernel_sources[] = {
${rows}    {0},
};
")
