# Runs a program and compares its exit status with the one expected:
#
#   cmake -DSTATUS=n [-DSENTENCE=regex] [-DLEAST_ERROR=number] -P expect.cmake -- program arguments...
#
# SENTENCE must match something in the output; LEAST_ERROR is a bound below the relative_l2_error of a last JSON line.
cmake_minimum_required(VERSION 3.25)

set(command "")
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE 1 ${last})
    if(separated)
        list(APPEND command "${CMAKE_ARGV${i}}")
    elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
        set(separated ON)
    endif()
endforeach()

execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output_of_errors)
message("${output}${output_of_errors}")
if(NOT status EQUAL STATUS)
    message(FATAL_ERROR "exit status ${status}, expected ${STATUS}")
endif()
if(DEFINED SENTENCE AND NOT "${output}${output_of_errors}" MATCHES "${SENTENCE}")
    message(FATAL_ERROR "nothing in the output matches '${SENTENCE}'")
endif()
if(DEFINED LEAST_ERROR)
    string(REGEX MATCH "{[^\n]*}\n$" line "${output}")
    string(JSON error GET "${line}" relative_l2_error)
    if(NOT error GREATER LEAST_ERROR)
        message(FATAL_ERROR "the error is ${error}, expected more than ${LEAST_ERROR}")
    endif()
endif()
