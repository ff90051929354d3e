# clang writes a module's visible variables in an order that differs from run to run (that of addresses in a set).
# cmake -DPTX=FILE -P MemoptSortPtx.cmake: in the order of their names' lines, where the first of them was.
file(READ ${PTX} text)
string(ASCII 1 semicolon) # lines end with one, which divides CMake's lists
string(REPLACE ";" "${semicolon}" text "${text}")
set(line "\n\\.visible \\.global [^\n]*")
string(REGEX MATCHALL "${line}" lines "${text}")
if(lines)
  list(GET lines 0 first)
  string(FIND "${text}" "${first}" place)
  string(REGEX REPLACE "${line}" "" text "${text}")
  string(SUBSTRING "${text}" 0 ${place} before)
  string(SUBSTRING "${text}" ${place} -1 after)
  list(SORT lines)
  list(JOIN lines "" lines)
  set(text "${before}${lines}${after}")
  string(REPLACE "${semicolon}" ";" text "${text}")
  file(WRITE ${PTX} "${text}")
endif()
