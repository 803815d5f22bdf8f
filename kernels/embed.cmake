# Writes kernel sources as C: cmake -DOUT=FILE.c "-DFILES=A.cu;B.o" -P embed.cmake
# The assembler reads the files when FILE.c is compiled. (As numbers in C they were 15 MB of text and 8 s of each
# build.)
set(arrays "")
set(rows "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER mlx_file_${name} array)
  file(SIZE ${file} size)
  string(APPEND arrays "FILE_BYTES(${array}, ${size}, \"${file}\")\n")
  string(APPEND rows "    {\"${name}\", (const char *)${array}, ${size}},\n")
endforeach()
file(WRITE ${OUT}
"// Written by kernels/embed.cmake from kernels/*.h, kernels/cuda and the objects of kernels/cpu.
#include \"compiler/kernel_source.h\"
#ifdef _WIN32
#define READ_ONLY \".section .rdata,\\\"dr\\\"\\n\"
#else
#define READ_ONLY \".section .rodata\\n\"
#endif
// The bytes of a file and a NUL, which ends a source as a string.
#define FILE_BYTES(name, size, path)                                             \\
  __asm__(READ_ONLY \".balign 16\\n\" #name \":\\n.incbin \\\"\" path \"\\\"\\n.byte 0\\n.text\\n\"); \\
  extern const unsigned char name[size + 1];
extern const mlx_kernel_source_t mlx_kernel_sources[];
${arrays}const mlx_kernel_source_t mlx_kernel_sources[] = {
${rows}    {0},
};
")
