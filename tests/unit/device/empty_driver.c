/* A library that can be opened and has none of a driver's entry points. */
extern const int memopt_test_empty_driver;
const int memopt_test_empty_driver = 1;
