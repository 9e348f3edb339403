"""Say what is wrong with the queries of dashboards and rule files, whoever wrote them."""
