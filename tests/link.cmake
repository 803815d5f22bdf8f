# link_tested_rooms(TARGET FILE) links a test program with the rooms whose headers FILE and the test headers that it
# includes name, and makes it depend on the program mlxcel if it starts that program. A new include of a test needs no
# line in CMakeLists.txt.

# Rooms that are libraries, each before the rooms that it calls. open/ calls the compiler, which every program links for
# itself.
set(tested_rooms server open compiler runtime output grammar template tokenizer transfer artifact cache line unicode models graph shim base)

# Reads FILE once: appends the paths that it includes to the property test_includes, and whether it starts mlxcel to
# test_starts.
function(read_test_source file)
  get_property(known GLOBAL PROPERTY test_includes_${file} SET)
  if(known)
    return()
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(STRINGS ${CMAKE_SOURCE_DIR}/${file} lines REGEX "^#include \"|MLXCEL_(RUNTIME_ONLY_)?BINARY|[^A-Z_]RUN\\(" ENCODING UTF-8)
  set(includes "")
  set(starts OFF)
  foreach(line IN LISTS lines)
    if(line MATCHES "^#include \"([^\"]+)\"")
      list(APPEND includes ${CMAKE_MATCH_1})
    elseif(NOT file STREQUAL tests/support/command.h)  # it defines RUN, which only some of its users call
      set(starts ON)
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY test_includes_${file} "${includes}")
  set_property(GLOBAL PROPERTY test_starts_${file} ${starts})
endfunction()

function(link_tested_rooms target file)
  file(RELATIVE_PATH file ${CMAKE_SOURCE_DIR} ${file})
  set(files ${file})
  set(rooms "")
  set(starts OFF)
  while(files)
    list(POP_FRONT files file)
    read_test_source(${file})
    get_property(includes GLOBAL PROPERTY test_includes_${file})
    get_property(file_starts GLOBAL PROPERTY test_starts_${file})
    if(file_starts)
      set(starts ON)
    endif()
    foreach(include IN LISTS includes)
      if(include MATCHES "^tests/")
        if(NOT include IN_LIST seen)
          list(APPEND files ${include})
          list(APPEND seen ${include})
        endif()
      elseif(include STREQUAL runtime/mlxcel.h)  # open/ defines its functions that open a model
        list(APPEND rooms runtime open compiler)
      elseif(include MATCHES "^(open|server)/")  # the server opens models
        list(APPEND rooms ${CMAKE_MATCH_1} open compiler)
      elseif(include MATCHES "^([a-z]+)/")
        list(APPEND rooms ${CMAKE_MATCH_1})
      endif()
    endforeach()
  endwhile()
  foreach(room IN LISTS tested_rooms)
    if(room IN_LIST rooms)
      target_link_libraries(${target} mlxcel_${room})
    endif()
  endforeach()
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  if(starts)
    add_dependencies(${target} mlxcel mlxcel_runtime_only)
  endif()
  if(tests/support/pty.h IN_LIST seen)
    target_link_libraries(${target} util)  # forkpty in older C libraries
  endif()
endfunction()
